import assert from 'node:assert/strict';
import { test } from 'node:test';
import { applyChunk, emptyAnswer } from '../src/api/chat';
import { EventParser, type ServerEvent } from '../src/api/sse';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

test('events are the same however their bytes are cut', () => {
  const stream = bytes('data: {"a":"é–🦊"}\n\n: ping\n\nevent: odd\ndata: one\ndata:two\r\n\r\nid: 3\rdata: x\r\rdata: [DONE]\n\n');
  const expected: ServerEvent[] = [
    { event: 'message', data: '{"a":"é–🦊"}' },
    { event: 'odd', data: 'one\ntwo' },
    { event: 'message', data: 'x' },
    { event: 'message', data: '[DONE]' },
  ];
  for (let size = 1; size <= stream.length; ++size) {
    const parser = new EventParser();
    const got: ServerEvent[] = [];
    for (let at = 0; at < stream.length; at += size) got.push(...parser.push(stream.slice(at, at + size)));
    assert.deepEqual(got, expected, `pieces of ${size} bytes`);
  }
});

test('an event that has not ended is not there', () => {
  const parser = new EventParser();
  assert.deepEqual(parser.push(bytes('data: x\n')), []);
  assert.equal(parser.push(bytes('\n')).length, 1);
});

test('chunks add up to an answer', () => {
  let answer = emptyAnswer();
  const chunks = [
    { id: 'chatcmpl-1', choices: [{ delta: { content: null, reasoning_content: '' } }] },
    { choices: [{ delta: { reasoning_content: 'hm', content: null } }] },
    { choices: [{ delta: { content: 'He' } }] },
    { choices: [{ delta: { content: 'llo' } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, id: 'c0', function: { name: 'f', arguments: '' } }] } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: '{"x":' } }] } }] },
    { choices: [{ delta: { tool_calls: [{ index: 1, id: 'c1', function: { name: 'g', arguments: '{}' } }, { index: 0, function: { arguments: '1}' } }] } }] },
    { choices: [{ delta: {}, finish_reason: 'tool_calls' }], usage: { prompt_tokens: 9, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 4 } } },
  ];
  for (const chunk of chunks) answer = applyChunk(answer, chunk);
  assert.deepEqual(answer, {
    id: 'chatcmpl-1', reasoning: 'hm', content: 'Hello', finish: 'tool_calls',
    tools: [{ id: 'c0', name: 'f', arguments: '{"x":1}' }, { id: 'c1', name: 'g', arguments: '{}' }],
    usage: { prompt_tokens: 9, completion_tokens: 5, cached_tokens: 4, reasoning_tokens: 0 },
  });
  assert.throws(() => applyChunk(answer, { error: { message: 'out of pages' } }), /out of pages/);
});
