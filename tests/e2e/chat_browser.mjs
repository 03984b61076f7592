// The chat page in a real browser: on nano, and on the fake engine, which says what a test wants it to.
// node chat_browser.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { openBrowser, openPage, portray, unlabelled } from './browser.mjs';
import { dsml, finish, reply, serve, test } from './server_process.mjs';

const program = process.argv[2];
const server = await serve(program);
const browser = await openBrowser(server.url);
const evil = '<img src=x onerror=alert(1)>';
const scripted = await serve(program, '--fake-engine', '--fake-rate', '0', '--served-model-name', evil);
const slow = await serve(program, '--fake-engine', '--fake-rate', '20', '--fake-tokens', '100000');

async function openChat(url, options) {
  const opened = await openPage(browser, options);
  await opened.page.goto(`${url}/#/chat`);
  await opened.page.getByText('live', { exact: true }).waitFor();
  return opened;
}
async function say(page, text) {
  await page.getByLabel('Message', { exact: true }).fill(text);
  await page.keyboard.press('Enter');
}
const done = (page, count = 1) => page.waitForFunction((n) => document.querySelectorAll('.turn.answer footer').length === n, count);
const noThinking = (page) => page.getByLabel('Reasoning effort').selectOption('off');

await test('an answer, what was thought is folded', async () => {
  const { page, complaints, close } = await openChat(server.url);
  await page.getByLabel('Seed', { exact: true }).fill('3'); // some of its answers are very short
  await page.getByLabel('Max tokens', { exact: true }).fill('300');
  await say(page, 'Tell me a story about a fox and a lamp.');
  await done(page);
  const thinking = page.locator('.turn.answer details');
  assert.equal(await thinking.evaluate((e) => e.open), false);
  assert.equal(await thinking.locator('p').isVisible(), false);
  await thinking.locator('summary').focus();
  await page.keyboard.press('Enter');
  assert.ok((await thinking.locator('p').textContent()).length > 10 && (await thinking.locator('p').isVisible()));
  assert.ok((await page.locator('.turn.answer .markdown').textContent()).length > 20);
  assert.match(await page.locator('.turn.answer footer').textContent(), /first token after .* tokens · .*tok\/s · prompt/);
  assert.deepEqual(await unlabelled(page), []);
  assert.deepEqual(complaints, []);
  await say(page, 'And then?');
  await done(page, 2);
  await portray(page, 'chat', { full: false });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('System prompt').waitFor();
  await portray(page, 'chat-settings', { full: false });
  await close();
});

await test('the settings reach the server', async () => {
  const { page, close } = await openChat(server.url);
  await page.getByLabel('Temperature', { exact: true }).fill('0.5');
  await page.getByLabel('Top p', { exact: true }).fill('0.9');
  await page.getByLabel('Max tokens', { exact: true }).fill('12');
  await page.getByLabel('Seed', { exact: true }).fill('7');
  await page.getByLabel('System prompt').fill('Be brief.');
  await page.getByLabel('Reasoning effort').selectOption('low');
  const sent = page.waitForRequest('**/v1/chat/completions');
  await say(page, 'Hello.');
  const body = (await sent).postDataJSON();
  assert.deepEqual(body, { model: 'nano', temperature: 0.5, top_p: 0.9, max_tokens: 12, seed: 7, thinking: { type: 'enabled' }, reasoning_effort: 'low', messages: [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'Hello.' }], stream: true, stream_options: { include_usage: true } });
  await done(page);
  await page.reload();
  assert.equal(await page.getByLabel('Seed', { exact: true }).inputValue(), '7', 'they are kept');
  await close();
});

await test('an answer streams, and stop ends it, on the server, too', async () => {
  const { page, close } = await openChat(slow.url);
  await noThinking(page);
  await say(page, 'Go on and on.');
  // It comes piece by piece: this one would go on for an hour.
  const longer = async (than) => (await page.waitForFunction((n) => Math.max(0, (document.querySelector('.turn.answer .markdown')?.textContent.length ?? 0) - n), than)).jsonValue();
  const first = await longer(20);
  await longer(20 + first);
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.locator('.turn.answer footer', { hasText: 'stopped' }).waitFor();
  for (let load = 1; load > 0; ) load = (await (await fetch(`${slow.url}/load`)).json()).server_load;
  await page.getByRole('button', { name: 'Send' }).waitFor();
  await close();
});

await test('what the server refuses is said as it says it', async () => {
  const { page, close } = await openChat(server.url);
  await page.getByLabel('Temperature', { exact: true }).fill('9');
  await say(page, 'Hello.');
  await page.getByRole('alert').getByText(/temperature must be in/).waitFor();
  await page.getByLabel('Temperature', { exact: true }).fill('');
  await page.getByLabel('Tools').fill('{');
  await say(page, 'Hello again.');
  await page.getByRole('alert').getByText(/tools: not JSON/).waitFor();
  await close();
});

await test('text of a model runs nothing', async () => {
  const { page, complaints, close } = await openChat(scripted.url);
  page.on('dialog', () => complaints.push('a dialog opened'));
  await noThinking(page);
  await page.locator('.model', { hasText: 'onerror' }).waitFor(); // the name of the model is text
  const attack = [
    '<script>alert(1)</script>', evil, '<svg/onload=alert(1)>', '<iframe src="javascript:alert(1)"></iframe>',
    '[a](javascript:alert(1)) [b](data:text/html,<script>alert(1)</script>) [c](JaVaScRiPt:alert(1)) [d](https://example.com/ok)',
    '![x](https://example.com/beacon.png)', '`<b onmouseover=alert(1)>`', '# <img src=x onerror=alert(1)>', '```html\n<script>alert(1)</script>\n```', '| <b>a</b> | b |\n|---|---|\n| <i>c</i> | d |',
    '<a href="https://example.com" onclick="alert(1)">e</a>', '*'.repeat(3000), '['.repeat(3000),
  ].join('\n\n');
  await say(page, reply(attack));
  await done(page);
  const found = await page.locator('.turn.answer').evaluate((e) => ({
    active: e.querySelectorAll('script, img, svg, iframe, object, embed, style, link, b, i, [onclick], [onerror], [onload], [onmouseover]').length,
    links: [...e.querySelectorAll('.markdown a')].map((a) => a.href),
    rel: [...e.querySelectorAll('.markdown a')].every((a) => a.rel.includes('noopener') && a.target === '_blank'),
    code: e.querySelector('pre code').textContent,
    cell: e.querySelector('td').textContent,
  }));
  assert.equal(found.active, 0);
  assert.ok(found.links.every((href) => /^https:\/\/example\.com/.test(href)), String(found.links));
  assert.ok(found.rel);
  assert.equal(found.code, '<script>alert(1)</script>');
  assert.equal(found.cell, '<i>c</i>');
  assert.deepEqual(complaints, [], 'nothing ran, nothing was asked for');
  await close();
});

await test('tool calls are shown, and go on with their results', async () => {
  const { page, complaints, close } = await openChat(scripted.url);
  await noThinking(page);
  await page.getByLabel('Tools').fill(JSON.stringify([{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }]));
  await say(page, reply(`Let me look.${dsml(['weather', { city: 'Hangzhou' }])}`));
  await page.getByRole('region', { name: 'Call of weather' }).waitFor();
  await done(page); // its arguments come piece by piece
  assert.match(await page.locator('.tool pre').textContent(), /"city": "Hangzhou"/);
  await page.getByLabel('Its result').fill('24 degrees');
  const sent = page.waitForRequest('**/v1/chat/completions');
  await page.getByRole('button', { name: 'Send the result' }).click();
  const { messages } = (await sent).postDataJSON();
  assert.deepEqual(messages.slice(1).map((m) => m.role), ['assistant', 'tool']);
  assert.equal(messages[2].tool_call_id, messages[1].tool_calls[0].id);
  await done(page, 2);
  await portray(page, 'chat-tools', { full: false });
  assert.deepEqual(complaints, []);
  await close();
});

await test('a server that dies in the middle', async () => {
  const { page, close } = await openChat(slow.url);
  await noThinking(page);
  await say(page, 'Go on and on.');
  await page.waitForFunction(() => (document.querySelector('.turn.answer .markdown')?.textContent.length ?? 0) > 20);
  await slow.stop('SIGKILL');
  await page.locator('.turn.answer').getByRole('alert').getByText('the connection broke in the middle of the answer').waitFor();
  await page.getByText('The server does not answer').waitFor();
  await close();
});

await browser.close();
finish();
process.exit(); // the servers end with this process
