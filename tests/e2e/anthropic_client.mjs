// The npm client `@anthropic-ai/sdk` against the built program: node anthropic_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { client, dsml, finish, reply, serve, test, watchWarnings } from './server_process.mjs';

const Anthropic = client('@anthropic-ai/sdk');
const program = process.argv[2];
const warnings = watchWarnings();
const server = await serve(program, '--fake-engine', '--fake-rate', '0', '--fake-tokens', '40', '--api-key', 'sk-test', '--served-model-name', 'fake');
const anthropic = new Anthropic({ apiKey: 'sk-test', authToken: null, baseURL: server.url, maxRetries: 0 });
const base = { model: 'fake', max_tokens: 200, thinking: { type: 'disabled' } };
const thinking = { type: 'enabled', budget_tokens: 1024 };
const ask = (content, more = {}) => ({ ...base, messages: [{ role: 'user', content }], ...more });
const weather = { name: 'weather', description: 'Weather of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } } } };

await test('models', async () => {
  const list = await anthropic.models.list();
  assert.equal(list.data[0].id, 'fake');
  assert.equal(list.data[0].type, 'model');
  assert.equal((await anthropic.models.retrieve('fake')).display_name, 'fake');
});

await test('messages', async () => {
  const { data, response } = await anthropic.messages.create(ask(reply('Hello there.'))).withResponse();
  assert.deepEqual(data.content, [{ type: 'text', text: 'Hello there.' }]);
  assert.equal(data.role, 'assistant');
  assert.equal(data.stop_reason, 'end_turn');
  assert.ok(data.usage.input_tokens > 0 && data.usage.output_tokens > 0);
  assert.equal(data._request_id, response.headers.get('request-id'));
});

await test('streamed, raw events', async () => {
  const types = [];
  let text = '';
  for await (const event of await anthropic.messages.create(ask(reply('Zwölf 🎉 Füchse'), { stream: true }))) {
    types.push(event.type);
    if (event.type === 'content_block_delta') text += event.delta.text;
  }
  assert.equal(text, 'Zwölf 🎉 Füchse');
  assert.equal(types[0], 'message_start');
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
});

await test('streamed, helper, thinking', async () => {
  const stream = anthropic.messages.stream(ask(reply('I think.</think>I answer.'), { max_tokens: 2000, thinking }));
  let thought = '';
  let text = '';
  stream.on('thinking', (delta) => (thought += delta));
  stream.on('text', (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(thought, 'I think.');
  assert.equal(text, 'I answer.');
  assert.deepEqual(final.content.map((b) => b.type), ['thinking', 'text']);
  assert.equal(typeof final.content[0].signature, 'string');
  const whole = await anthropic.messages.create(ask(reply('I think.</think>I answer.'), { max_tokens: 2000, thinking }));
  assert.deepEqual(whole.content.map((b) => b.thinking ?? b.text), ['I think.', 'I answer.']);
});

await test('tool_use and tool_result loop, thinking kept', async () => {
  const messages = [{ role: 'user', content: reply(`I look.</think>Wait.${dsml(['weather', { city: 'Rome' }], ['weather', { city: 'Oslo' }])}`) }];
  const first = await anthropic.messages.create({ ...base, max_tokens: 2000, thinking, messages, tools: [weather] });
  assert.equal(first.stop_reason, 'tool_use');
  const calls = first.content.filter((b) => b.type === 'tool_use');
  assert.deepEqual(calls.map((c) => c.input), [{ city: 'Rome' }, { city: 'Oslo' }]);
  messages.push({ role: 'assistant', content: first.content });
  messages.push({ role: 'user', content: calls.map((c) => ({ type: 'tool_result', tool_use_id: c.id, content: reply(`</think>Sunny in ${c.input.city}.`) })) });
  const second = await anthropic.messages.stream({ ...base, max_tokens: 2000, thinking, messages, tools: [weather] }).finalMessage();
  assert.equal(second.content.at(-1).text, 'Sunny in Oslo.');
  assert.equal(second.stop_reason, 'end_turn');
});

await test('streamed tool input', async () => {
  const stream = anthropic.messages.stream(ask(reply(dsml(['weather', { city: 'a "quoted"\nRome', more: [1, { b: null }] }])), { tools: [weather] }));
  let json = '';
  stream.on('inputJson', (delta) => (json += delta));
  const final = await stream.finalMessage();
  assert.deepEqual(JSON.parse(json), { city: 'a "quoted"\nRome', more: [1, { b: null }] });
  assert.deepEqual(final.content.at(-1).input, JSON.parse(json));
});

await test('stop sequences and limits', async () => {
  const stopped = await anthropic.messages.create(ask(reply('one STOP two'), { stop_sequences: ['STOP'] }));
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, 'STOP');
  assert.equal(stopped.content[0].text, 'one ');
  assert.equal((await anthropic.messages.create(ask('x', { max_tokens: 3 }))).stop_reason, 'max_tokens');
});

await test('count_tokens equals the usage', async () => {
  const body = ask('How long is this?', { system: 'Be brief.', tools: [weather] });
  const { max_tokens, ...counted } = body;
  const count = await anthropic.messages.countTokens(counted);
  assert.equal(count.input_tokens, (await anthropic.messages.create(body)).usage.input_tokens);
});

await test('models of other names', async () => {
  assert.equal((await anthropic.messages.create(ask(reply('Yes.'), { model: 'claude-of-tests' }))).content[0].text, 'Yes.');
});

await test('errors have their types', async () => {
  await assert.rejects(anthropic.messages.create(ask('x', { model: 'other' })), Anthropic.NotFoundError);
  await assert.rejects(anthropic.messages.create(ask('x', { temperature: 9 })), (e) => e instanceof Anthropic.BadRequestError && e.error.type === 'error' && /temperature/.test(e.message));
  await assert.rejects(anthropic.messages.create({ ...base, messages: [] }), Anthropic.BadRequestError);
  const wrong = new Anthropic({ apiKey: 'wrong', authToken: null, baseURL: server.url, maxRetries: 0 });
  await assert.rejects(wrong.messages.create(ask('x')), Anthropic.AuthenticationError);
  const bearer = new Anthropic({ apiKey: null, authToken: 'sk-test', baseURL: server.url, maxRetries: 0 });
  assert.equal((await bearer.messages.create(ask(reply('Yes.')))).content[0].text, 'Yes.');
});
await server.stop();

const slow = await serve(program, '--fake-engine', '--fake-rate', '30', '--fake-tokens', '100000');
await test('aborts reach the engine', async () => {
  const client2 = new Anthropic({ apiKey: 'none', authToken: null, baseURL: slow.url, maxRetries: 0 });
  const stream = client2.messages.stream({ ...ask('x'), max_tokens: 100000 });
  await new Promise((resolve) => stream.on('text', resolve));
  stream.abort();
  await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  const load = async () => (await (await fetch(`${slow.url}/load`)).json()).server_load;
  for (let i = 0; i < 1500 && (await load()) > 0; ++i) await new Promise((r) => setTimeout(r, 20));
  assert.equal(await load(), 0);
});
await slow.stop();

const real = await serve(program);
await test('nano', async () => {
  const client3 = new Anthropic({ apiKey: 'none', authToken: null, baseURL: real.url, maxRetries: 0 });
  const body = { model: 'nano', max_tokens: 40, temperature: 0, thinking: { type: 'disabled' }, messages: [{ role: 'user', content: 'Tell me a story about a fox and a lamp.' }] };
  const whole = await client3.messages.create(body);
  assert.match(whole.content[0].text, /fox/);
  assert.deepEqual((await client3.messages.stream(body).finalMessage()).content, whole.content);
  const thought = await client3.messages.stream({ ...body, thinking: { type: 'enabled', budget_tokens: 1024 }, max_tokens: 60 }).finalMessage();
  assert.equal(thought.content[0].type, 'thinking');
});
await real.stop();

await test('no warning was printed', () => assert.deepEqual(warnings, []));
finish();
