// The npm client `openai` against the built program: node openai_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { client, dsml, finish, post, reply, serve, test, watchWarnings } from './server_process.mjs';

const OpenAI = client('openai');
const program = process.argv[2];
const warnings = watchWarnings();
const server = await serve(program, '--fake-engine', '--fake-rate', '0', '--fake-tokens', '40', '--api-key', 'sk-test', '--served-model-name', 'fake');
const openai = new OpenAI({ apiKey: 'sk-test', baseURL: `${server.url}/v1`, maxRetries: 0 });
const chat = (content, more = {}) => openai.chat.completions.create({ model: 'fake', messages: [{ role: 'user', content }], ...more });
const off = { thinking: { type: 'disabled' } };
const on = { thinking: { type: 'enabled' } };
const weather = { type: 'function', function: { name: 'weather', description: 'Weather of a city', parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] } } };

await test('models', async () => {
  const list = await openai.models.list();
  assert.deepEqual(list.data.map((m) => m.id), ['fake']);
  assert.equal((await openai.models.retrieve('fake')).object, 'model');
  await assert.rejects(openai.models.retrieve('other'), OpenAI.NotFoundError);
});

await test('chat', async () => {
  const { data, response } = await chat(reply('Hello there.'), off).withResponse();
  assert.equal(data.choices[0].message.content, 'Hello there.');
  assert.equal(data.choices[0].message.role, 'assistant');
  assert.equal(data.choices[0].finish_reason, 'stop');
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.equal(data._request_id, response.headers.get('x-request-id'));
});

await test('chat, streamed, equals chat', async () => {
  const text = 'Zwölf 🎉 Füchse\n\nand a {"brace"} < tag';
  const stream = await chat(reply(text), { ...off, stream: true, stream_options: { include_usage: true } });
  let got = '';
  let usage = null;
  for await (const chunk of stream) {
    got += chunk.choices[0]?.delta?.content ?? '';
    if (chunk.usage) usage = chunk.usage;
  }
  assert.equal(got, text);
  const whole = await chat(reply(text), off);
  assert.equal(whole.choices[0].message.content, text);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

await test('thinking', async () => {
  const whole = await chat(reply('I think.</think>I answer.'), on);
  assert.equal(whole.choices[0].message.reasoning_content, 'I think.');
  assert.equal(whole.choices[0].message.content, 'I answer.');
  const stream = await chat(reply('I think.</think>I answer.'), { ...on, stream: true });
  let reasoning = '';
  let content = '';
  for await (const chunk of stream) {
    reasoning += chunk.choices[0]?.delta?.reasoning_content ?? '';
    content += chunk.choices[0]?.delta?.content ?? '';
  }
  assert.equal(reasoning, 'I think.');
  assert.equal(content, 'I answer.');
});

await test('choices, log-probs, stop', async () => {
  const many = await chat(reply('a b c'), { ...off, n: 3, logprobs: true, top_logprobs: 2 });
  assert.equal(many.choices.length, 3);
  assert.deepEqual(many.choices.map((c) => c.index), [0, 1, 2]);
  assert.ok(many.choices[0].logprobs.content.length > 0);
  assert.equal(many.choices[0].logprobs.content[0].top_logprobs.length, 2);
  const stopped = await chat(reply('one STOP two'), { ...off, stop: ['STOP'] });
  assert.equal(stopped.choices[0].message.content, 'one ');
});

await test('tools, one loop', async () => {
  const messages = [{ role: 'user', content: reply(`Let me see.${dsml(['weather', { city: 'Rome', days: 2 }], ['weather', { city: 'Oslo' }])}`) }];
  const first = await openai.chat.completions.create({ model: 'fake', messages, tools: [weather], ...off });
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  const calls = first.choices[0].message.tool_calls;
  assert.deepEqual(calls.map((c) => JSON.parse(c.function.arguments)), [{ city: 'Rome', days: 2 }, { city: 'Oslo' }]);
  messages.push(first.choices[0].message, ...calls.map((c) => ({ role: 'tool', tool_call_id: c.id, content: reply(`Sunny in ${JSON.parse(c.function.arguments).city}.`) })));
  const second = await openai.chat.completions.create({ model: 'fake', messages, tools: [weather], ...off });
  assert.equal(second.choices[0].message.content, 'Sunny in Oslo.');
});

await test('tools, helper runTools', async () => {
  const runner = openai.chat.completions.runTools({
    model: 'fake',
    messages: [{ role: 'user', content: reply(dsml(['weather', { city: 'Rome' }])) }],
    tools: [{ ...weather, function: { ...weather.function, parse: JSON.parse, function: ({ city }) => reply(`It rains in ${city}.`) } }],
    ...off,
  });
  assert.equal(await runner.finalContent(), 'It rains in Rome.');
});

await test('streamed, helper with events', async () => {
  const stream = openai.chat.completions.stream({ model: 'fake', messages: [{ role: 'user', content: reply(`See.${dsml(['weather', { city: 'a "quoted"\nRome' }])}`) }], tools: [weather], ...off });
  let deltas = '';
  let args = null;
  stream.on('content', (delta) => (deltas += delta));
  stream.on('tool_calls.function.arguments.done', (event) => (args = event.arguments));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas, 'See.');
  assert.deepEqual(JSON.parse(args), { city: 'a "quoted"\nRome' });
  assert.equal(final.choices[0].finish_reason, 'tool_calls');
});

await test('JSON output', async () => {
  const got = await chat(`Answer in json. ${reply('{"a": [1, 2, {"b": null}]}')}`, { ...off, response_format: { type: 'json_object' } });
  assert.deepEqual(JSON.parse(got.choices[0].message.content), { a: [1, 2, { b: null }] });
});

await test('completions', async () => {
  const whole = await openai.completions.create({ model: 'fake', prompt: reply('x y z'), max_tokens: 50, echo: false });
  assert.equal(whole.choices[0].text, 'x y z');
  let text = '';
  for await (const chunk of await openai.completions.create({ model: 'fake', prompt: ['a', 'b'], max_tokens: 4, stream: true })) text += chunk.choices[0]?.text ?? '';
  assert.ok(text.length > 0);
});

await test('responses', async () => {
  const whole = await openai.responses.create({ model: 'fake', input: reply('Well.'), reasoning: { effort: 'none' } });
  assert.equal(whole.output_text, 'Well.');
  assert.equal(whole.status, 'completed');
  const again = await openai.responses.retrieve(whole.id);
  assert.equal(again.output[0].content[0].text, 'Well.');
  const types = [];
  for await (const event of await openai.responses.create({ model: 'fake', input: reply('Hm.</think>Well.'), stream: true })) types.push(event.type);
  assert.equal(types[0], 'response.created');
  assert.equal(types.at(-1), 'response.completed');
  assert.ok(types.includes('response.reasoning_text.delta'));
  assert.ok(types.includes('response.output_text.delta'));
});

await test('responses, tools loop and helper', async () => {
  const tools = [{ type: 'function', name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } }, strict: false }];
  const input = [{ role: 'user', content: reply(dsml(['weather', { city: 'Rome' }])) }];
  const stream = openai.responses.stream({ model: 'fake', input, tools, reasoning: { effort: 'none' } });
  const first = await stream.finalResponse();
  const call = first.output.find((item) => item.type === 'function_call');
  assert.deepEqual(JSON.parse(call.arguments), { city: 'Rome' });
  input.push(call, { type: 'function_call_output', call_id: call.call_id, output: reply('Dry.') });
  const second = await openai.responses.create({ model: 'fake', input, tools, reasoning: { effort: 'none' } });
  assert.equal(second.output_text, 'Dry.');
});

await test('errors have their types', async () => {
  await assert.rejects(chat('x', { model: 'gpt-4' }), OpenAI.NotFoundError);
  await assert.rejects(chat('x', { temperature: 9 }), (e) => e instanceof OpenAI.BadRequestError && /temperature/.test(e.message));
  const wrong = new OpenAI({ apiKey: 'wrong', baseURL: `${server.url}/v1`, maxRetries: 0 });
  await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
});

await test('the fake server ends on SIGTERM', async () => {
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
});

const slow = await serve(program, '--fake-engine', '--fake-rate', '30', '--fake-tokens', '100000', '--max-num-seqs', '1', '--max-queued-requests', '1');
await test('aborts reach the engine', async () => {
  const openai2 = new OpenAI({ apiKey: 'none', baseURL: `${slow.url}/v1`, maxRetries: 0 });
  const load = async () => (await (await fetch(`${slow.url}/load`)).json()).server_load;
  const body = { model: 'fake', messages: [{ role: 'user', content: 'x' }], ...off };
  const stream = await openai2.chat.completions.create({ ...body, stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  const control = new AbortController();
  const whole = openai2.chat.completions.create(body, { signal: control.signal });
  setTimeout(() => control.abort(), 200);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  for (let i = 0; i < 1500 && (await load()) > 0; ++i) await new Promise((r) => setTimeout(r, 20));
  assert.equal(await load(), 0);
});
await test('a full queue is retried', async () => {
  const body = { model: 'fake', messages: [{ role: 'user', content: 'x' }], max_tokens: 60, ...off };
  const patient = new OpenAI({ apiKey: 'none', baseURL: `${slow.url}/v1`, maxRetries: 6 });
  const answers = await Promise.all([1, 2, 3].map(() => patient.chat.completions.create({ ...body, max_tokens: 20 })));
  assert.equal(answers.length, 3);
  const hasty = new OpenAI({ apiKey: 'none', baseURL: `${slow.url}/v1`, maxRetries: 0 });
  const results = await Promise.allSettled([1, 2, 3, 4].map(() => hasty.chat.completions.create(body)));
  assert.ok(results.some((r) => r.status === 'rejected' && r.reason instanceof OpenAI.RateLimitError));
});
await slow.stop();

const real = await serve(program);
await test('nano: a story, streamed and whole, the same', async () => {
  const openai3 = new OpenAI({ apiKey: 'none', baseURL: `${real.url}/v1`, maxRetries: 0 });
  const body = { model: 'nano', messages: [{ role: 'user', content: 'Tell me a story about a fox and a lamp.' }], temperature: 0, max_tokens: 40, ...off };
  const whole = await openai3.chat.completions.create(body);
  assert.match(whole.choices[0].message.content, /fox/);
  let text = '';
  for await (const chunk of await openai3.chat.completions.create({ ...body, stream: true })) text += chunk.choices[0]?.delta?.content ?? '';
  assert.equal(text, whole.choices[0].message.content);
  const thought = await openai3.chat.completions.create({ ...body, ...on });
  assert.equal(typeof thought.choices[0].message.reasoning_content, 'string');
  const response = await openai3.responses.create({ model: 'nano', input: 'Tell me a story about a fox and a lamp.', reasoning: { effort: 'none' }, max_output_tokens: 40, temperature: 0 });
  assert.equal(response.output_text, whole.choices[0].message.content);
  const completion = await openai3.completions.create({ model: 'nano', prompt: 'The fox', max_tokens: 8, temperature: 0, logprobs: 2 });
  assert.equal(completion.usage.completion_tokens, 8);
});
await test('nano: only allowed tokens, the end of a prompt, and how likely it was', async () => {
  const nano = new OpenAI({ apiKey: 'none', baseURL: `${real.url}/v1`, maxRetries: 0 });
  const words = (await post(real.url, '/tokenize', { model: 'nano', prompt: 'The fox carried the lamp' })).body.tokens.slice(1);
  const answer = await nano.completions.create({ model: 'nano', prompt: 'The fox carried the lamp', max_tokens: 12, logprobs: 0, ignore_eos: true, allowed_token_ids: words, prompt_logprobs: 1, truncate_prompt_tokens: 3 });
  assert.equal(answer.usage.prompt_tokens, 3);
  const pieces = 'The fox carried the lamp';
  for (const token of answer.choices[0].logprobs.tokens) assert.ok(pieces.includes(token), token);
  const known = answer.choices[0].prompt_logprobs;
  assert.equal(known.length, 3);
  for (const [i, id] of words.slice(-2).entries()) {
    const { logprob, rank, decoded_token } = known[i + 1][id];
    assert.ok(logprob < 0 && rank >= 1 && pieces.includes(decoded_token), JSON.stringify(known));
    assert.ok(Object.values(known[i + 1]).some((t) => t.rank === 1));
  }
  const story = { model: 'nano', prompt: 'The fox', max_tokens: 30, temperature: 0, ignore_eos: true, logprobs: 0 };
  const tokens = async (more) => (await nano.completions.create({ ...story, ...more })).choices[0].logprobs.tokens;
  const word = (await tokens({})).find((token) => /^ [a-z]{3,}$/.test(token));
  assert.ok(!(await tokens({ bad_words: [word] })).includes(word), word);
  const stopped = await nano.completions.create({ model: 'nano', prompt: 'The fox', max_tokens: 40, ignore_eos: true, stop: ' ', include_stop_str_in_output: true });
  assert.ok(stopped.choices[0].text.endsWith(' '), stopped.choices[0].text);
});

await test('nano: ends on SIGINT', async () => {
  assert.deepEqual(await real.stop('SIGINT'), { code: 0, signal: null });
});

await test('no warning was printed', () => assert.deepEqual(warnings, []));
finish();
