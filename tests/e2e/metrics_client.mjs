// /metrics of the built program on nano: sums agree with what the client counts, every metric of the reference moves, and
// promtool reads it. A real Prometheus scrapes it in prometheus_scrape.mjs.
// node metrics_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { eventually, finish, metric, post, root, serve, test } from './server_process.mjs';

// A collector of traces that takes what comes.
const collected = [];
const collector = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    collected.push(JSON.parse(body));
    response.end('{}');
  });
});
await new Promise((resolve) => collector.listen(0, '127.0.0.1', resolve));

const store = fs.mkdtempSync(path.join(os.tmpdir(), 'deepinfer-metrics-'));
process.on('exit', () => fs.rmSync(store, { recursive: true, force: true }));

// Small on purpose: few places, few pages, short lives, so that everything happens that can.
const server = await serve(
  process.argv[2], '--max-num-seqs', '2', '--max-connections', '48', '--max-queued-requests', '10', '--kv-cache-memory', '320KiB',
  '--cache-ttl-chat', '2', '--window-snapshot-ttl', '0.3', '--speculative-config', '{"method":"dspark","mode":"fixed"}',
  '--kv-host-bytes', '64KiB', '--kv-store', store, '--kv-ttl-agent', '0', '--no-kv-cut-over',
  '--otlp-traces-endpoint', `http://127.0.0.1:${collector.address().port}/v1/traces`);
const story = Array(60).fill('The fox carried the lamp through the quiet wood.').join(' ');
const ask = (content, more = {}) => ({ model: 'nano', messages: [{ role: 'user', content }], max_tokens: 6, thinking: { type: 'disabled' }, ...more });
const seen = { prompt: 0, completion: 0, cached: 0, requests: 0, choices: 0, stop: 0, length: 0 };
const add = (body) => {
  seen.prompt += body.usage.prompt_tokens;
  seen.completion += body.usage.completion_tokens;
  seen.cached += body.usage.prompt_tokens_details?.cached_tokens ?? body.usage.prompt_cache_hit_tokens ?? 0;
  seen.requests += 1;
  seen.choices += body.choices.length;
  for (const choice of body.choices) seen[choice.finish_reason] += 1;
};

/// The families of the text: name -> sum over its samples (of a histogram: its count).
async function families() {
  const out = new Map();
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const types = new Map([...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map((m) => [m[1], m[2]]));
  for (const name of types.keys()) out.set(name, 0);
  for (const line of text.split('\n').filter((l) => l !== '' && !l.startsWith('#'))) {
    const sample = /^[^{ ]+/.exec(line)[0];
    const name = types.has(sample) ? sample : sample.endsWith('_count') ? sample.slice(0, -6) : null;
    if (name !== null) out.set(name, out.get(name) + Number(line.slice(line.lastIndexOf(' ') + 1)));
  }
  return out;
}
// Gauges of the moment are looked at while things happen: the largest and the smallest value of each.
const highest = new Map();
const lowest = new Map();
let watching = true;
async function watch() {
  while (watching) {
    for (const [name, value] of await families()) {
      highest.set(name, Math.max(highest.get(name) ?? -Infinity, value));
      lowest.set(name, Math.min(lowest.get(name) ?? Infinity, value));
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
const watcher = watch();

await test('sums agree with the client', async () => {
  const bodies = [ask(story), ask('Hello.'), ask(`${story} And then?`), ask('Hello.', { n: 2, max_tokens: 3 })];
  for (const body of bodies) add((await post(server.url, '/v1/chat/completions', body)).body);
  const together = Array.from({ length: 8 }, (_, i) => ask(i < 6 ? story : 'Tell me a story about a fox.', { max_tokens: 6 + 8 * i }));
  for (const answer of await Promise.all(together.map((body) => post(server.url, '/v1/chat/completions', body)))) add(answer.body);
  assert.ok(seen.cached > 0, 'the prompts share pages');
  await eventually('the last request is counted', async () => (await metric(server.url, 'vllm:e2e_request_latency_seconds_count')) === seen.requests);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_total'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:generation_tokens_total'), seen.completion);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_cached_total'), seen.cached);
  assert.equal(await metric(server.url, 'vllm:prefix_cache_hits_total'), seen.cached);
  assert.equal(await metric(server.url, 'vllm:prefix_cache_queries_total'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:prompt_tokens_by_source_total', 'local_compute'), seen.prompt - seen.cached);
  assert.equal(await metric(server.url, 'vllm:request_success_total'), seen.choices);
  for (const reason of ['stop', 'length']) assert.equal(await metric(server.url, 'vllm:request_success_total', `"${reason}"`), seen[reason], reason);
  assert.equal(await metric(server.url, 'vllm:request_prompt_tokens_sum'), seen.prompt);
  assert.equal(await metric(server.url, 'vllm:request_generation_tokens_sum'), seen.completion);
  for (const name of ['time_to_first_token', 'request_queue_time', 'request_prefill_time', 'request_decode_time', 'request_inference_time'])
    assert.equal(await metric(server.url, `vllm:${name}_seconds_count`), seen.requests, name);
  const [first, total] = [await metric(server.url, 'vllm:time_to_first_token_seconds_sum'), await metric(server.url, 'vllm:e2e_request_latency_seconds_sum')];
  const [queue, prefill, decode] = await Promise.all(['queue', 'prefill', 'decode'].map((part) => metric(server.url, `vllm:request_${part}_time_seconds_sum`)));
  assert.ok(queue > 0, 'more requests than places');
  assert.ok(queue + prefill <= first + 1e-3 && queue + prefill + decode <= total + 1e-3, `${queue} ${prefill} ${decode} ${first} ${total}`);
  assert.ok((await metric(server.url, 'deepinfer:steps_total')) > 0 && (await metric(server.url, 'deepinfer:step_seconds_total')) > 0);
});

await test('phases of the timeline add up to the first token that the metric measured', async () => {
  const { requests } = await (await fetch(`${server.url}/debug/timeline?last=100`)).json();
  assert.equal(requests.length, seen.requests);
  const sum = (of) => requests.reduce((total, r) => total + of(r), 0);
  const phases = sum((r) => r.phases.filter((p) => p.name !== 'decode').reduce((total, p) => total + p.end - p.begin, 0));
  const measured = await metric(server.url, 'vllm:time_to_first_token_seconds_sum');
  assert.ok(Math.abs(phases - measured) <= 0.02 * measured, `${phases} ${measured}`);
  assert.equal(sum((r) => r.prompt_tokens), seen.prompt);
  assert.equal(sum((r) => r.completion_tokens), seen.completion);
  assert.equal(sum((r) => r.cached_tokens), seen.cached);
});

await test('experts: the matrix agrees with the metrics, layer by layer', async () => {
  const { layers } = await (await fetch(`${server.url}/debug/experts`)).json();
  assert.ok(layers.length > 0);
  for (const layer of layers) {
    const tokens = layer.counts.reduce((a, b) => a + b, 0);
    assert.equal(tokens, layer.tokens);
    assert.equal(await metric(server.url, 'deepinfer:expert_tokens_total', `layer="${layer.layer}"`), tokens);
  }
});

await test('a trace of each request reaches the collector', async () => {
  const spans = () => collected.flatMap((body) => body.resourceSpans.flatMap((r) => r.scopeSpans.flatMap((s) => s.spans)));
  await eventually('all have come', () => spans().filter((s) => s.name === 'llm_request').length === seen.requests);
  const roots = spans().filter((s) => s.name === 'llm_request');
  const tokens = (s) => Number(s.attributes.find((a) => a.key === 'gen_ai.usage.completion_tokens').value.intValue);
  assert.equal(roots.reduce((total, s) => total + tokens(s), 0), seen.completion);
});

// Why a metric of the reference stays as it is here.
const still = {
  'deepinfer:kv_pages': 'as many as --kv-cache-memory makes',
  'deepinfer:otlp_export_failures_total': 'the collector takes everything; otlp_exporter_test.cc has one that does not',
  'deepinfer:otlp_spans_dropped_total': 'the same',
  'deepinfer:trace_spans_dropped_total': 'no file is written; chrome_trace_test.cc has a slow one',
  'deepinfer:kv_pages_filtered_total': 'no class is kept by no tier; async_tiers_test.cc has one',
  'deepinfer:kv_pulls_refused_total': 'what is stored is fetched here whatever computing takes; core_tiers_test.cc refuses',
  'deepinfer:kv_pulls_failed_total': 'the stores are sound; kv tests with real faults have it, here and below',
  'deepinfer:kv_pulls_late_total': 'the same',
  'deepinfer:kv_tier_available': 'the same',
  'deepinfer:kv_tier_lookups_late_total': 'the same',
  'deepinfer:kv_tier_outages_total': 'the same',
  'deepinfer:kv_tier_pages_dropped_total': 'the same',
  'deepinfer:kv_tier_read_misses_total': 'the same',
  'deepinfer:kv_tier_write_errors_total': 'the same',
  'deepinfer:foreign_markers_total': 'nano does not write them; metrics_test.cc has an answer with one',
};
const moved = (name) => highest.get(name) > lowest.get(name);

await test('every metric of the reference moves', async () => {
  const chat = (content, more) => post(server.url, '/v1/chat/completions', ask(content, more)).catch(() => null);
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const many = (count, make) => Promise.all(Array.from({ length: count }, (_, i) => make(i)));
  let stuck = [];
  for (let round = 0; round < 20; ++round) {
    // Forms that nobody has asked for yet, all at once.
    await many(10, (i) => chat('A form.', { structured_outputs: { regex: `([a-z]{1,${20 + round}} ){${10 + i}}` }, max_tokens: 8 }));
    // A prefix whose window has gone and whose pages have not.
    await chat(story);
    await pause(700);
    await chat(story);
    // Two answers that do not fit side by side; more requests than may wait; more connections than are taken.
    await many(2, (i) => chat(`${i} ${story}`, { max_tokens: 700, ignore_eos: true }));
    await many(40, (i) => chat(`${round} ${i} ${story.slice(0, 800)}`, { max_tokens: 20, ignore_eos: true }));
    await many(80, () => fetch(`${server.url}/health`, { headers: { connection: 'close' } }).catch(() => null));
    // A client that leaves.
    const leaving = new AbortController();
    const body = JSON.stringify(ask(story, { stream: true, max_tokens: 400, ignore_eos: true }));
    const stream = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body, signal: leaving.signal });
    await stream.body.getReader().read();
    leaving.abort();
    await pause(3200); // what nobody uses expires
    stuck = [...(await families()).keys()].filter((name) => !moved(name) && !(name in still));
    if (stuck.length === 0) break;
  }
  assert.deepEqual(stuck, [], 'these never moved');
  const table = fs.readFileSync(path.join(root, 'docs', 'reference', 'metrics.md'), 'utf8');
  const names = [...table.matchAll(/^\| `([^`]+)` \|/gm)].map((m) => m[1]);
  assert.ok(names.length > 50);
  const now = await families();
  assert.deepEqual(names.filter((name) => !now.has(name)), [], 'in the reference, not in /metrics');
  assert.deepEqual(names.filter((name) => !moved(name) && !(name in still)), []);
  assert.deepEqual(Object.keys(still).filter((name) => !now.has(name) || moved(name)), [], 'excused, but gone or moving');
});
/// What promtool says of an exposition: {status, complaints}; null where it is absent.
async function promtool(query) {
  const input = await (await fetch(`${server.url}/metrics${query}`)).text();
  const { error, status, stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], { input, encoding: 'utf8' });
  if (error?.code === 'ENOENT') return null;
  return { status, complaints: (stdout + stderr).split('\n').filter((line) => line !== '') };
}
await test('promtool passes', async () => {
  const plain = await promtool('?names=underscore');
  if (plain === null) return console.log('     skipped: no promtool here (apt-get install prometheus)');
  assert.deepEqual(plain, { status: 0, complaints: [] });
  // Of vLLM's own names it says one thing: colons are for recording rules. 3 is its way to say that it said something.
  const verbatim = await promtool('');
  assert.deepEqual(verbatim.complaints.filter((line) => !line.endsWith("metric names should not contain ':'")), []);
  assert.equal(verbatim.status, 3);
});

watching = false;
await watcher;
await test('it ends on SIGTERM', async () => assert.deepEqual(await server.stop(), { code: 0, signal: null }));
collector.close();
finish();
