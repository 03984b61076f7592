// /metrics of the built program on nano: it agrees with what the client counts, and promtool reads it.
// node metrics_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { eventually, finish, metric, post, serve, test } from './server_process.mjs';

const server = await serve(process.argv[2], '--max-num-seqs', '2');
const story = Array(60).fill('The fox carried the lamp through the quiet wood.').join(' ');
const ask = (content, more = {}) => ({ model: 'nano', messages: [{ role: 'user', content }], max_tokens: 6, thinking: { type: 'disabled' }, ...more });
const seen = { prompt: 0, completion: 0, cached: 0, requests: 0, choices: 0 };
const add = (usage, choices) => {
  seen.prompt += usage.prompt_tokens;
  seen.completion += usage.completion_tokens;
  seen.cached += usage.prompt_tokens_details?.cached_tokens ?? usage.prompt_cache_hit_tokens ?? 0;
  seen.requests += 1;
  seen.choices += choices;
};

await test('sums agree with the client', async () => {
  const bodies = [ask(story), ask('Hello.'), ask(`${story} And then?`), ask('Hello.', { n: 2, max_tokens: 3 })];
  for (const body of bodies) add((await post(server.url, '/v1/chat/completions', body)).body.usage, body.n ?? 1);
  for (const answer of await Promise.all(Array(6).fill(ask(story)).map((body) => post(server.url, '/v1/chat/completions', body)))) add(answer.body.usage, 1);
  assert.ok(seen.cached > 0, 'the prompts share pages');
  await eventually('the last request is counted', async () => (await metric(server.url, 'vllm:e2e_request_latency_seconds_count')) === seen.requests);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_total'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:generation_tokens_total'), seen.completion);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_cached_total'), seen.cached);
  assert.equal(await metric(server.url, 'vllm:prefix_cache_hits_total'), seen.cached);
  assert.equal(await metric(server.url, 'vllm:prefix_cache_queries_total'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_by_source_total', 'local_compute'), seen.prompt - seen.cached);
  assert.equal(await metric(server.url, 'vllm:request_success_total'), seen.choices);
  assert.equal(await metric(server.url, 'vllm:request_prompt_tokens_sum'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:request_generation_tokens_sum'), seen.completion);
  for (const name of ['time_to_first_token', 'request_queue_time', 'request_prefill_time', 'request_decode_time', 'request_inference_time'])
    assert.equal(await metric(server.url, `vllm:${name}_seconds_count`), seen.requests, name);
  const [first, total] = [await metric(server.url, 'vllm:time_to_first_token_seconds_sum'), await metric(server.url, 'vllm:e2e_request_latency_seconds_sum')];
  const [queue, prefill, decode] = await Promise.all(['queue', 'prefill', 'decode'].map((part) => metric(server.url, `vllm:request_${part}_time_seconds_sum`)));
  assert.ok(queue > 0, 'six requests, two places');
  assert.ok(queue + prefill <= first + 1e-3 && queue + prefill + decode <= total + 1e-3, `${queue} ${prefill} ${decode} ${first} ${total}`);
  assert.ok((await metric(server.url, 'deepinfer:steps_total')) > 0 && (await metric(server.url, 'deepinfer:step_seconds_total')) > 0);
});

await test('promtool', async () => {
  const { error, status, stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], { input: await (await fetch(`${server.url}/metrics`)).text(), encoding: 'utf8' });
  if (error?.code === 'ENOENT') return console.log('     no promtool here (apt-get install prometheus)');
  // The names of vLLM have colons, which the linter reserves for recording rules; 3 says that the linter found something.
  const complaints = (stdout + stderr).split('\n').filter((line) => line !== '' && !line.endsWith("metric names should not contain ':'"));
  assert.deepEqual(complaints, []);
  assert.ok(status === 0 || status === 3, `promtool ended with ${status}`);
});

await test('it ends on SIGTERM', async () => assert.deepEqual(await server.stop(), { code: 0, signal: null }));
finish();
