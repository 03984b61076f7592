// The dashboard in a real browser, on the built program with nano.
// node dashboard_browser.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { basics, faint, openBrowser, openPage, portray, unlabelled, unreachable } from './browser.mjs';
import { finish, post, root, serve, test } from './server_process.mjs';

const program = process.argv[2];
let server = await serve(program, '--max-num-seqs', '4', '--speculative-config', '{"method": "dspark", "num_speculative_tokens": 5}');
const browser = await openBrowser(server.url);
const port = new URL(server.url).port;
const story = Array(60).fill('The fox carried the lamp through the quiet wood.').join(' ');
const ask = (content, max_tokens = 60) => post(server.url, '/v1/chat/completions', { model: 'nano', messages: [{ role: 'user', content }], max_tokens, thinking: { type: 'disabled' } });

/// A little load until `stop` is called.
function load(callers = 6) {
  let on = true;
  const one = async (n) => {
    for (let i = 0; on; ++i) await ask(i % 3 === 0 ? `${n} ${i} ${story}` : `${story} ${n}`, 20 + 40 * (i % 4));
  };
  const all = Promise.all(Array.from({ length: callers }, (_, n) => one(n)));
  return async () => {
    on = false;
    await all;
  };
}

const tile = (page, label) => page.locator('.tiles li', { has: page.getByRole('button', { name: label }) });

await test('the files are open, cached and locked up', async () => {
  const page = await fetch(`${server.url}/`);
  assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8');
  assert.equal(page.headers.get('cache-control'), 'no-cache');
  assert.match(page.headers.get('content-security-policy'), /default-src 'none'.*script-src 'self'/);
  const again = await fetch(`${server.url}/`, { headers: { 'If-None-Match': page.headers.get('etag') } });
  assert.equal(again.status, 304);
  const text = await page.text();
  assert.ok(!/<script(?![^>]*src=)|style=|onclick|https?:\/\/(?!www\.w3\.org)/.test(text), 'no inline code, no other host');
  for (const [, asset] of text.matchAll(/(?:src|href)="\.\/(assets\/[^"]+)"/g)) {
    const file = await fetch(`${server.url}/${asset}`);
    assert.equal(file.status, 200, asset);
    assert.match(file.headers.get('cache-control'), /immutable/);
  }
});

await test('figures of a load appear and move', async () => {
  const { page, complaints, hosts, close } = await openPage(browser);
  await page.goto(server.url);
  await page.getByText('live', { exact: true }).waitFor();
  await tile(page, 'Output').waitFor();
  await page.getByText('nothing runs').waitFor();
  const stop = load();
  await page.waitForFunction(() => /per request/.test(document.querySelector('.tiles')?.textContent ?? ''));
  await page.waitForFunction(() => [...document.querySelectorAll('.tiles li')].every((li) => !/none in the last minute|no prompts|no drafts/.test(li.textContent)));
  await page.waitForTimeout(8000); // something to see in the pictures
  const missing = await page.locator('.tiles .missing').allTextContents();
  assert.deepEqual(missing, [], 'every figure of the tiles is reported');
  await tile(page, 'Output').locator('.value', { hasText: /[1-9]/ }).waitFor();
  await page.waitForFunction(() => (document.querySelector('section[aria-label^="Throughput"] path.line')?.getAttribute('d').length ?? 0) > 30); // a line is drawn
  await portray(page, 'overview');
  await stop();
  assert.deepEqual(complaints, []);
  assert.deepEqual([...hosts], [`127.0.0.1:${port}`], 'no other host is asked');
  await close();
});

await test('every control has a name and is reached by the keyboard', async () => {
  const { page, complaints, close } = await openPage(browser);
  for (const hash of ['#/', '#/requests', '#/chat']) {
    await page.goto(`${server.url}/${hash}`);
    await page.getByText('live', { exact: true }).waitFor();
    if (hash === '#/') await tile(page, 'Output').waitFor();
    await page.getByText('Asking…').waitFor({ state: 'detached' });
    assert.deepEqual(await basics(page), [], hash);
    assert.deepEqual(await unlabelled(page), [], hash);
    assert.deepEqual(await unreachable(page), [], hash);
  }
  assert.deepEqual(complaints, []);
  await close();
});

await test('a figure explains itself, a chart is read with the arrow keys', async () => {
  const { page, close } = await openPage(browser);
  await page.goto(server.url);
  await tile(page, 'Output').getByRole('button').focus();
  await page.locator('.tip', { hasText: 'Tokens generated a second' }).waitFor();
  await page.keyboard.press('Escape');
  await page.locator('.tip').waitFor({ state: 'detached' });
  await page.waitForFunction(() => (document.querySelector('section[aria-label="Requests"] path.line')?.getAttribute('d').length ?? 0) > 30); // something to read
  await page.locator('section[aria-label="Requests"] svg').focus();
  await page.keyboard.press('ArrowLeft');
  await page.locator('section[aria-label="Device"] .when').waitFor();
  await close();
});

await test('light and dark by the system, and by choice', async () => {
  const { page, close } = await openPage(browser, { colorScheme: 'dark' });
  await page.goto(server.url);
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await back();
  await page.getByRole('button', { name: 'Use the light theme' }).click();
  assert.notEqual(await back(), dark);
  await page.reload();
  assert.notEqual(await back(), dark, 'the choice is kept');
  await page.getByRole('button', { name: 'Use the dark theme' }).click();
  assert.equal(await back(), dark);
  await close();
});

await test('what is not reported is not a zero', async () => {
  const { page, close } = await openPage(browser);
  await page.route('**/metrics', async (route) => {
    const response = await route.fetch();
    const text = (await response.text()).split('\n').filter((line) => !/spec_decode|device_idle|step_seconds|inter_token/.test(line)).join('\n');
    await route.fulfill({ response, body: text });
  });
  await page.goto(server.url);
  await tile(page, 'Drafts accepted').waitFor();
  for (const label of ['Drafts accepted', 'Device busy', 'Between tokens']) await tile(page, label).getByText('not reported').first().waitFor();
  await page.locator('section[aria-label="Device"] .nothing', { hasText: 'not reported' }).waitFor();
  await close();
});

await test('a server that stops and comes back', async () => {
  const { page, close } = await openPage(browser);
  await page.goto(server.url);
  await tile(page, 'Output').waitFor();
  await server.stop();
  await page.getByRole('alert').getByText('The server does not answer').waitFor();
  await page.getByRole('status').getByText('not reachable').waitFor();
  server = await serve(program, '--port', port);
  await page.getByText('live', { exact: true }).waitFor();
  await page.getByRole('alert').waitFor({ state: 'detached' });
  await close();
});

await test('a key is asked for, tried and kept in the tab', async () => {
  const closed = await serve(program, '--api-key', 'right-key');
  const { page, complaints, close } = await openPage(browser);
  await page.goto(closed.url);
  await page.getByRole('heading', { name: 'This server needs an API key' }).waitFor();
  await portray(page, 'key');
  await page.getByLabel('API key').fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByRole('alert').getByText('The server refused this key: no valid API key').waitFor();
  assert.deepEqual(await unlabelled(page), []);
  await page.getByLabel('API key').fill('right-key');
  await page.getByRole('button', { name: 'Use this key' }).click();
  await tile(page, 'Output').waitFor();
  assert.deepEqual(await page.evaluate(() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie].map((s) => s.includes('right-key'))), [true, false, false]);
  await page.reload();
  await tile(page, 'Output').waitFor();
  await page.getByRole('button', { name: 'Forget key' }).click();
  await page.getByRole('heading', { name: 'This server needs an API key' }).waitFor();
  assert.deepEqual(complaints.filter((c) => !c.includes('401')), [], 'the browser itself reports refusals, and nothing else');
  await close();
  await closed.stop();
});

await test('a timeline is drawn from what the server says of it', async () => {
  const { page, complaints, close } = await openPage(browser);
  const fixture = JSON.parse(fs.readFileSync(path.join(root, 'web', 'test', 'fixtures', 'timeline.json')));
  await page.route('**/debug/timeline?*', (route) => route.fulfill({ json: route.request().url().includes('request=') ? { ...fixture, requests: fixture.requests.slice(0, 1) } : { ...fixture, spans: [] } }));
  await page.goto(`${server.url}/#/requests`);
  await page.getByRole('link', { name: fixture.requests[0].id }).click();
  await page.getByRole('cell', { name: /ms|µs/ }).first().waitFor();
  await page.locator('.gantt canvas').focus();
  for (const key of ['+', '+', 'ArrowRight', '-', '0']) await page.keyboard.press(key);
  const box = await page.locator('.gantt canvas').boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 30);
  await page.locator('.gantt .reading', { hasText: /request: / }).waitFor();
  await portray(page, 'requests');
  assert.deepEqual(complaints, []);
  await close();
});

await test('a request of this server is found by its id, and its phases add up', async () => {
  const { page, complaints, close } = await openPage(browser);
  const stop = load(3);
  const { body } = await ask(`${story} And then?`, 100);
  await stop();
  await page.goto(`${server.url}/#/requests`);
  await page.getByLabel('Id of a request').fill(body.id);
  await page.keyboard.press('Enter');
  await page.getByRole('region', { name: body.id }).waitFor();
  const phases = page.locator('section[aria-label="Time to first token"]');
  for (const phase of ['Receive', 'Queue', 'Prefill', 'Deliver']) await phases.getByRole('button', { name: phase }).waitFor();
  assert.equal(await phases.locator('.notice').count(), 0, 'nothing of the time to first token is missing');
  await page.getByRole('region', { name: body.id }).getByText(`${body.usage.completion_tokens} tokens`).first().waitFor();
  assert.match(await page.locator('.gantt canvas').getAttribute('aria-label'), /Timeline of [1-9]\d* spans/);
  await portray(page, 'request');
  await page.getByLabel('Id of a request').fill('nobody');
  await page.keyboard.press('Enter');
  await page.locator('main').getByRole('alert').waitFor();
  assert.deepEqual(complaints.filter((c) => !c.includes('404')), [], 'the browser itself reports the 404');
  await close();
});

await test('experts are a map that is read cell by cell', async () => {
  const { page, close } = await openPage(browser);
  const layers = Array.from({ length: 12 }, (_, layer) => ({ layer, draft: layer > 9, tokens: 0, imbalance: 1, counts: Array.from({ length: 64 }, (__, e) => 100 + 60 * ((e * 7 + layer * 3) % 11)) }));
  layers[3].counts[5] = 9000;
  for (const layer of layers) layer.tokens = layer.counts.reduce((a, b) => a + b, 0);
  await page.route('**/debug/experts', (route) => route.fulfill({ json: { experts: 64, layers } }));
  await page.goto(server.url);
  const map = page.locator('.heat canvas');
  await map.focus();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowDown');
  await page.locator('.heat .reading', { hasText: 'layer 1, expert 0: chosen' }).waitFor();
  assert.deepEqual(await faint(page), []);
  await portray(page, 'experts');
  await close();
});

await test('the dashboard can be left out', async () => {
  const bare = await serve(program, '--no-dashboard');
  assert.equal((await fetch(`${bare.url}/`)).status, 404);
  await bare.stop();
});

await browser.close();
await server.stop();
finish();
process.exit(); // servers of a test that failed may still run; they end with this process
