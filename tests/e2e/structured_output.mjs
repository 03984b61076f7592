// Structured output from the built program with the nano model, through other people's clients:
//   node structured_output.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { client, finish, serve, test, watchWarnings } from './server_process.mjs';

const OpenAI = client('openai');
const Anthropic = client('@anthropic-ai/sdk');
const program = process.argv[2];
const warnings = watchWarnings();
const server = await serve(program);
const openai = new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey: 'none', authToken: null, baseURL: server.url, maxRetries: 0 });

const off = { thinking: { type: 'disabled' } };
const base = { model: 'nano', max_tokens: 300, seed: 7 };
const messages = [{ role: 'user', content: 'Tell me about a fox, in json.' }];
const schema = {
  type: 'object',
  properties: {
    name: { type: 'string', maxLength: 12 },
    legs: { type: 'integer', minimum: 0, maximum: 8 },
    colours: { type: 'array', items: { enum: ['red', 'grey', 'white'] }, minItems: 1, maxItems: 3 },
  },
  required: ['name', 'legs', 'colours'],
  additionalProperties: false,
};
const isFox = (fox) => {
  assert.deepEqual(Object.keys(fox), ['name', 'legs', 'colours']);
  assert.ok(typeof fox.name === 'string' && [...fox.name].length <= 12);
  assert.ok(Number.isInteger(fox.legs) && fox.legs >= 0 && fox.legs <= 8);
  assert.ok(fox.colours.length >= 1 && fox.colours.length <= 3);
  for (const colour of fox.colours) assert.ok(['red', 'grey', 'white'].includes(colour));
};
const jsonSchema = (more = {}) => ({ type: 'json_schema', json_schema: { name: 'fox', schema, ...more } });
const refused = { type: 'object', properties: { list: { type: 'array', uniqueItems: true } } };
const tell = { name: 'tell', description: 'Tells about an animal', parameters: schema };

await test('chat: response_format json_schema, whole, streamed and parsed', async () => {
  const body = { ...base, ...off, messages, response_format: jsonSchema({ strict: true }) };
  const whole = await openai.chat.completions.create(body);
  assert.equal(whole.choices[0].finish_reason, 'stop');
  isFox(JSON.parse(whole.choices[0].message.content));
  const parsed = await openai.chat.completions.parse(body);
  isFox(parsed.choices[0].message.parsed);
  assert.equal(parsed.choices[0].message.content, whole.choices[0].message.content);
  const final = await openai.chat.completions.stream(body).finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  isFox(final.choices[0].message.parsed);
});

await test('an answer need not be an object', async () => {
  const scalar = { enum: [30, 'thirty', true, null] };
  const is = (text) => assert.ok(scalar.enum.includes(JSON.parse(text)), text);
  const format = { type: 'json_schema', name: 'x', schema: scalar };
  for (const stream of [false, true]) {
    const body = { ...base, ...off, messages, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: scalar } } };
    const chat = stream ? await openai.chat.completions.stream(body).finalChatCompletion() : await openai.chat.completions.create(body);
    is(chat.choices[0].message.content);
  }
  is((await openai.responses.create({ model: 'nano', input: 'A fox', reasoning: { effort: 'none' }, text: { format } })).output_text);
  is((await anthropic.messages.create({ model: 'nano', max_tokens: 300, ...off, messages, output_config: { format } })).content[0].text);
});

await test('chat: several choices, after thinking', async () => {
  const many = await openai.chat.completions.create({ ...base, ...off, messages, n: 4, response_format: jsonSchema() });
  for (const choice of many.choices) isFox(JSON.parse(choice.message.content));
  assert.ok(new Set(many.choices.map((c) => c.message.content)).size > 1);
  const thought = await openai.chat.completions.create({ ...base, messages: [{ role: 'user', content: 'What is 12 + 30? Answer in json.' }], temperature: 0, max_tokens: 900, thinking: { type: 'enabled' }, response_format: jsonSchema() });
  if (thought.choices[0].finish_reason === 'stop') isFox(JSON.parse(thought.choices[0].message.content));
  else assert.equal(thought.choices[0].finish_reason, 'length');
});

await test('chat: json_object', async () => {
  // Any object may be long; the limit then cuts it.
  const got = await openai.chat.completions.create({ ...base, ...off, messages, max_tokens: 1000, response_format: { type: 'json_object' } });
  if (got.choices[0].finish_reason === 'stop') assert.equal(typeof JSON.parse(got.choices[0].message.content), 'object');
  assert.ok(got.choices[0].message.content.startsWith('{'));
});

await test('the fields of vLLM, in every API', async () => {
  const text = {
    chat: async (more) => (await openai.chat.completions.create({ ...base, ...off, messages, ...more })).choices[0].message.content,
    completions: async (more) => (await openai.completions.create({ ...base, prompt: 'A fox', ...more })).choices[0].text,
    responses: async (more) => (await openai.responses.create({ model: 'nano', input: 'A fox', reasoning: { effort: 'none' }, max_output_tokens: 300, ...more })).output_text,
    messages: async (more) => (await anthropic.messages.create({ model: 'nano', max_tokens: 300, ...off, messages, ...more })).content[0].text,
  };
  for (const [api, ask] of Object.entries(text)) {
    isFox(JSON.parse(await ask({ structured_outputs: { json: schema } })));
    assert.match(await ask({ structured_outputs: { regex: '(fox|lamp)-[0-9]{3}' } }), /^(fox|lamp)-[0-9]{3}$/, api);
    assert.match(await ask({ structured_outputs: { grammar: 'root ::= "a" b{2,4}\nb ::= [xyz]' } }), /^a[xyz]{2,4}$/, api);
    assert.ok(['yes', 'no', 'perhaps'].includes(await ask({ structured_outputs: { choice: ['yes', 'no', 'perhaps'] } })), api);
    assert.ok(['up', 'down'].includes(await ask({ guided_choice: ['up', 'down'] })), api);
  }
});

await test('chat: tools', async () => {
  const strict = { type: 'function', function: { ...tell, strict: true } };
  const plain = { type: 'function', function: { name: 'wait', parameters: { type: 'object', properties: {} } } };
  for (const [tools, tool_choice] of [[[strict], 'required'], [[strict, plain], { type: 'function', function: { name: 'tell' } }]]) {
    const got = await openai.chat.completions.create({ ...base, ...off, messages, tools, tool_choice, parallel_tool_calls: false });
    assert.equal(got.choices[0].finish_reason, 'tool_calls');
    assert.equal(got.choices[0].message.tool_calls.length, 1);
    assert.equal(got.choices[0].message.tool_calls[0].function.name, 'tell');
    isFox(JSON.parse(got.choices[0].message.tool_calls[0].function.arguments));
  }
  const thought = await openai.chat.completions.create({ ...base, messages: [{ role: 'user', content: 'What is 12 + 30?' }], temperature: 0, max_tokens: 900, thinking: { type: 'enabled' }, tools: [strict], tool_choice: 'required', parallel_tool_calls: false });
  if (thought.choices[0].finish_reason !== 'length') isFox(JSON.parse(thought.choices[0].message.tool_calls[0].function.arguments));
  // A format beside tools that nobody has to call: either one.
  const either = await openai.chat.completions.create({ ...base, ...off, messages, n: 6, tools: [strict], response_format: jsonSchema(), parallel_tool_calls: false });
  for (const { message } of either.choices) isFox(JSON.parse(message.tool_calls ? message.tool_calls[0].function.arguments : message.content));
  const parsed = await openai.chat.completions.parse({ ...base, ...off, messages, tools: [strict], tool_choice: 'required', parallel_tool_calls: false });
  isFox(parsed.choices[0].message.tool_calls[0].function.parsed_arguments);
  const streamed = await openai.chat.completions.stream({ ...base, ...off, messages, tools: [strict], tool_choice: 'required', parallel_tool_calls: false }).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.parsed_arguments, parsed.choices[0].message.tool_calls[0].function.parsed_arguments);
});

await test('responses: text.format and strict tools', async () => {
  const body = { model: 'nano', input: 'Tell me about a fox.', reasoning: { effort: 'none' }, max_output_tokens: 300, text: { format: { type: 'json_schema', name: 'fox', schema, strict: true } } };
  const parsed = await openai.responses.parse(body);
  isFox(parsed.output_parsed);
  const tools = [{ type: 'function', ...tell, strict: true }];
  const call = (await openai.responses.create({ model: 'nano', input: 'Tell me about a fox.', reasoning: { effort: 'none' }, max_output_tokens: 300, tools, tool_choice: 'required', parallel_tool_calls: false })).output.find((o) => o.type === 'function_call');
  isFox(JSON.parse(call.arguments));
});

await test('messages: output_config.format and tools', async () => {
  const ask = (more) => anthropic.messages.create({ model: 'nano', max_tokens: 300, ...off, messages, ...more });
  isFox(JSON.parse((await ask({ output_config: { format: { type: 'json_schema', schema } } })).content[0].text));
  const tools = [{ name: 'tell', description: 'Tells', input_schema: schema, strict: true }];
  const got = await ask({ tools, tool_choice: { type: 'tool', name: 'tell', disable_parallel_tool_use: true } });
  assert.equal(got.stop_reason, 'tool_use');
  isFox(got.content.find((b) => b.type === 'tool_use').input);
});

await test('what cannot be enforced is a 400 that names it, streamed or not', async () => {
  const stream = { stream: true };
  for (const more of [{}, stream]) {
    await assert.rejects(openai.chat.completions.create({ ...base, ...off, messages, ...more, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: refused } } }), (e) => e instanceof OpenAI.BadRequestError && /uniqueItems/.test(e.message) && /list/.test(e.message) && e.param === 'response_format.json_schema.schema');
    await assert.rejects(openai.responses.create({ model: 'nano', input: 'x', ...more, text: { format: { type: 'json_schema', name: 'x', schema: refused } } }), (e) => e instanceof OpenAI.BadRequestError && /uniqueItems/.test(e.message) && e.param === 'text.format.schema');
    await assert.rejects(openai.completions.create({ ...base, prompt: 'x', ...more, structured_outputs: { regex: '(a)\\1' } }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'structured_outputs.regex');
    await assert.rejects(anthropic.messages.create({ model: 'nano', max_tokens: 10, messages, ...more, output_config: { format: { type: 'json_schema', schema: refused } } }), (e) => e instanceof Anthropic.BadRequestError && e.error.type === 'error' && /uniqueItems/.test(e.message));
    const tools = [{ type: 'function', function: { name: 'f', strict: true, parameters: refused } }];
    await assert.rejects(openai.chat.completions.create({ ...base, ...off, messages, ...more, tools }), (e) => e instanceof OpenAI.BadRequestError && /tool f/.test(e.message) && /uniqueItems/.test(e.message) && e.param === 'tools');
  }
  await assert.rejects(openai.chat.completions.create({ ...base, messages, structured_outputs: { regex: 'a', choice: ['b'] } }), OpenAI.BadRequestError);
});

await test('strict: false leaves it out and says so', async () => {
  const loose = { type: 'object', properties: { list: { type: 'array', items: { type: 'boolean' }, maxItems: 2, uniqueItems: true } }, required: ['list'], additionalProperties: false };
  const format = { type: 'json_schema', json_schema: { name: 'x', schema: loose, strict: false } };
  for (const more of [{}, { stream: true }]) {
    const { data, response } = await openai.chat.completions.create({ ...base, ...off, messages, response_format: format, ...more }).withResponse();
    assert.match(response.headers.get('x-unenforced-keywords'), /uniqueItems/);
    if (more.stream) for await (const chunk of data) assert.ok(chunk.id);
    else assert.ok(Array.isArray(JSON.parse(data.choices[0].message.content).list));
  }
  const strict = await openai.chat.completions.create({ ...base, ...off, messages, response_format: jsonSchema() }).withResponse();
  assert.equal(strict.response.headers.get('x-unenforced-keywords'), null);
});

await test('a prefix is continued within the format', async () => {
  const prefixed = [...messages, { role: 'assistant', content: '{"name": "Re', prefix: true }];
  const got = await openai.chat.completions.create({ ...base, ...off, messages: prefixed, response_format: jsonSchema() });
  const rest = got.choices[0].message.content;
  isFox(JSON.parse(rest.startsWith('{') ? rest : `{"name": "Re${rest}`));
  await assert.rejects(openai.chat.completions.create({ ...base, ...off, messages: [...messages, { role: 'assistant', content: '[', prefix: true }], response_format: jsonSchema() }), (e) => e instanceof OpenAI.BadRequestError && /prefix/.test(e.message));
});

await test('many at once, free and constrained', async () => {
  const answers = await Promise.all(Array.from({ length: 24 }, (_, i) => openai.chat.completions.create({ ...base, ...off, seed: i, messages, max_tokens: 200, ...(i % 3 ? { response_format: jsonSchema() } : {}) })));
  answers.forEach((a, i) => i % 3 && isFox(JSON.parse(a.choices[0].message.content)));
});

await server.stop();
await test('no warning was printed', () => assert.deepEqual(warnings, []));
finish();
