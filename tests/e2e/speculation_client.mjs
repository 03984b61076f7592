// The server with and without speculative decoding: the same answers through every API, tools, formats, stops and log-probs among
// them, at once and in any company. `node speculation_client.mjs PROGRAM`
import assert from 'node:assert/strict';
import { serve, post, metric, test, finish } from './server_process.mjs';

const program = process.argv[2];
const config = (mode, drafts) => ['--speculative-config', JSON.stringify({ method: 'dspark', num_speculative_tokens: drafts, mode })];
const servers = {
  plain: await serve(program),
  'fixed 5': await serve(program, ...config('fixed', 5)),
  'fixed 2': await serve(program, ...config('fixed', 2)),
  variable: await serve(program, ...config('variable', 5)),
};

const say = (content) => [{ role: 'user', content }];
const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Weather of a city',
    strict: true,
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', maxLength: 12 }, days: { type: 'integer', minimum: 1, maximum: 9 } },
      required: ['city', 'days'],
      additionalProperties: false,
    },
  },
};
const schema = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 10 }, kind: { enum: ['fox', 'lamp'] }, year: { type: 'integer', maximum: 3000, minimum: 0 } },
  required: ['name', 'kind', 'year'],
  additionalProperties: false,
};
const story = say('Tell me a story about a fox and a lamp.');
const chat = (fields) => ['/v1/chat/completions', { model: 'nano', messages: story, max_tokens: 48, temperature: 0, seed: 1, thinking: { type: 'disabled' }, ...fields }];
const requests = {
  greedy: chat({}),
  sampled: chat({ temperature: 1, top_p: 0.9, seed: 7 }),
  'sampled, several choices': chat({ temperature: 1, seed: 11, n: 3, max_tokens: 24 }),
  thinking: chat({ thinking: { type: 'enabled' } }),
  'log-probs': chat({ logprobs: true, top_logprobs: 3, max_tokens: 16 }),
  'stop string': chat({ stop: ['the'] }),
  penalties: chat({ temperature: 0.8, seed: 3, presence_penalty: 0.5, frequency_penalty: 0.5, min_tokens: 20 }),
  'a tool it must call': chat({ messages: say('What is the weather in Paris?'), tools: [tool], tool_choice: 'required', max_tokens: 150 }),
  'a named tool, sampled': chat({
    messages: say('What is the weather in Rome for 3 days?'),
    tools: [tool],
    tool_choice: { type: 'function', function: { name: 'get_weather' } },
    temperature: 1,
    seed: 5,
    max_tokens: 150,
  }),
  'a tool it may call': chat({ messages: say('What is the weather in Oslo?'), tools: [tool], tool_choice: 'auto', max_tokens: 80 }),
  'JSON Schema': chat({ response_format: { type: 'json_schema', json_schema: { name: 'card', strict: true, schema } }, max_tokens: 100 }),
  'JSON Schema behind thinking': chat({
    thinking: { type: 'enabled' },
    response_format: { type: 'json_schema', json_schema: { name: 'card', strict: true, schema } },
    max_tokens: 200,
  }),
  completion: ['/v1/completions', { model: 'nano', prompt: 'Once upon a time', max_tokens: 40, temperature: 0.7, seed: 9, logprobs: 2 }],
  'two prompts': ['/v1/completions', { model: 'nano', prompt: ['One day', 'The fox'], max_tokens: 20, temperature: 0, echo: true }],
  messages: ['/v1/messages', { model: 'nano', max_tokens: 40, messages: story, temperature: 0, thinking: { type: 'disabled' } }],
  responses: ['/v1/responses', { model: 'nano', input: 'Tell me a story about a fox and a lamp.', max_output_tokens: 40, temperature: 0, reasoning: { effort: 'none' } }],
};

/// Without what is new in every answer: ids, times, and what the answer cost.
function lasting(value) {
  if (Array.isArray(value)) return value.map(lasting);
  if (value === null || typeof value !== 'object') return value;
  const fleeting = (key, v) =>
    /(^|_)id$|^signature$|^(created|created_at|completed_at)$|cache/.test(key) || (key.endsWith('_details') && typeof v === 'object');
  return Object.fromEntries(Object.entries(value).filter(([key, v]) => !fleeting(key, v)).map(([key, v]) => [key, lasting(v)]));
}

async function ask(server, [path, body]) {
  const { status, body: answer } = await post(server.url, path, body);
  assert.equal(status, 200, JSON.stringify(answer));
  return lasting(answer);
}

const expected = {};
for (const [name, request] of Object.entries(requests)) expected[name] = await ask(servers.plain, request);

await test('forced calls and formats are what they should be', async () => {
  for (const name of ['a tool it must call', 'a named tool, sampled']) {
    const call = expected[name].choices[0].message.tool_calls[0].function;
    assert.equal(call.name, 'get_weather');
    assert.ok(Number.isInteger(JSON.parse(call.arguments).days), call.arguments);
  }
  assert.ok(['fox', 'lamp'].includes(JSON.parse(expected['JSON Schema'].choices[0].message.content).kind));
});

for (const [mode, server] of Object.entries(servers)) {
  for (const [name, request] of Object.entries(requests)) {
    if (mode === 'plain') continue;
    await test(`${mode}: ${name}`, async () => assert.deepEqual(await ask(server, request), expected[name]));
  }
  await test(`${mode}: all of them at once`, async () => {
    const names = Object.keys(requests);
    const answers = await Promise.all(names.map((name) => ask(server, requests[name])));
    names.forEach((name, i) => assert.deepEqual(answers[i], expected[name], name));
  });
}

await test('drafts were verified, and some accepted', async () => {
  for (const mode of ['fixed 5', 'fixed 2']) {
    const drafted = await metric(servers[mode].url, 'vllm:spec_decode_num_draft_tokens_total');
    const accepted = await metric(servers[mode].url, 'vllm:spec_decode_num_accepted_tokens_total');
    assert.ok(accepted > 100 && accepted < drafted, `${mode}: ${accepted} of ${drafted}`);
  }
  assert.equal(await metric(servers.plain.url, 'vllm:spec_decode_num_draft_tokens_total'), 0);
});

for (const server of Object.values(servers)) await server.stop();
finish();
