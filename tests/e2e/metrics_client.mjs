// /metrics of the built program on nano: it agrees with what the client counts, promtool reads it, and the prefix cache can be
// reset. node metrics_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { finish, serve, test } from './server_process.mjs';

const server = await serve(process.argv[2], '--admin-port', '0', '--max-num-seqs', '2');
const post = async (path, body) => {
  const response = await fetch(server.url + path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
};
const text = async (url) => (await fetch(url)).text();
/// Samples by name, {labels} sorted away: the sum over all of a name that carry `label`.
async function metric(name, label = '') {
  const lines = (await text(`${server.url}/metrics`)).split('\n').filter((l) => (l.startsWith(`${name}{`) || l.startsWith(`${name} `)) && l.includes(label));
  assert.ok(lines.length > 0, `there is no ${name}`);
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}
async function eventually(what, condition) {
  for (let i = 0; i < 600; ++i) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(what);
}

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
  for (const body of bodies) add((await post('/v1/chat/completions', body)).body.usage, body.n ?? 1);
  for (const answer of await Promise.all(Array(6).fill(ask(story)).map((body) => post('/v1/chat/completions', body)))) add(answer.body.usage, 1);
  assert.ok(seen.cached > 0, 'the prompts share pages');
  await eventually('the last request is counted', async () => (await metric('vllm:e2e_request_latency_seconds_count')) === seen.requests);
  assert.equal(await metric('vllm:prompt_tokens_total'), seen.prompt);
  assert.equal(await metric('vllm:generation_tokens_total'), seen.completion);
  assert.equal(await metric('vllm:prompt_tokens_cached_total'), seen.cached);
  assert.equal(await metric('vllm:prefix_cache_hits_total'), seen.cached);
  assert.equal(await metric('vllm:prefix_cache_queries_total'), seen.prompt);
  assert.equal(await metric('vllm:prompt_tokens_by_source_total', 'local_compute'), seen.prompt - seen.cached);
  assert.equal(await metric('vllm:request_success_total'), seen.choices);
  assert.equal(await metric('vllm:request_prompt_tokens_sum'), seen.prompt);
  assert.equal(await metric('vllm:request_generation_tokens_sum'), seen.completion);
  for (const name of ['time_to_first_token', 'request_queue_time', 'request_prefill_time', 'request_decode_time', 'request_inference_time'])
    assert.equal(await metric(`vllm:${name}_seconds_count`), seen.requests, name);
  const [first, total] = [await metric('vllm:time_to_first_token_seconds_sum'), await metric('vllm:e2e_request_latency_seconds_sum')];
  const [queue, prefill, decode] = await Promise.all(['queue', 'prefill', 'decode'].map((part) => metric(`vllm:request_${part}_time_seconds_sum`)));
  assert.ok(queue > 0, 'six requests, two places');
  assert.ok(queue + prefill <= first + 1e-3 && queue + prefill + decode <= total + 1e-3, `${queue} ${prefill} ${decode} ${first} ${total}`);
  assert.ok((await metric('deepinfer:steps_total')) > 0 && (await metric('deepinfer:step_seconds_total')) > 0);
});

await test('promtool', async () => {
  const { error, status, stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], { input: await text(`${server.url}/metrics`), encoding: 'utf8' });
  if (error?.code === 'ENOENT') return console.log('     no promtool here (apt-get install prometheus)');
  // The names of vLLM have colons, which the linter reserves for recording rules; 3 says that the linter found something.
  const complaints = (stdout + stderr).split('\n').filter((line) => line !== '' && !line.endsWith("metric names should not contain ':'"));
  assert.deepEqual(complaints, []);
  assert.ok(status === 0 || status === 3, `promtool ended with ${status}`);
});

await test('the prefix cache is reset', async () => {
  const before = await post('/v1/chat/completions', ask(story));
  assert.ok(before.body.usage.prompt_tokens_details.cached_tokens > 0);
  await eventually('its pages stay in the cache', async () => (await metric('deepinfer:kv_pages_cached')) > 0);
  const reset = await fetch(`${server.admin}/reset_prefix_cache`, { method: 'POST' });
  assert.equal(reset.status, 200);
  await eventually('the pages are free', async () => (await metric('deepinfer:kv_pages_cached')) === 0 && (await metric('deepinfer:kv_pages_free')) === (await metric('deepinfer:kv_pages')));
  const after = await post('/v1/chat/completions', ask(story));
  assert.equal(after.body.usage.prompt_tokens_details.cached_tokens, 0);
  assert.equal((await fetch(`${server.url}/reset_prefix_cache`, { method: 'POST' })).status, 404);
});

await test('it ends on SIGTERM', async () => assert.deepEqual(await server.stop(), { code: 0, signal: null }));
finish();
