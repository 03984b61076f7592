// Prefixes in a store, as clients of the built program on nano see them: a server that was killed finds them again, the clients of other
// people take what usage says of it, and tenants find only their own.
// node kv_tiers_client.mjs PATH/TO/deepinfer [PATH/TO/libslow_reads.so]
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { client, eventually, finish, metric, post, serve, test, watchWarnings } from './server_process.mjs';

const OpenAI = client('openai');
const Anthropic = client('@anthropic-ai/sdk');
const program = process.argv[2];
const warnings = watchWarnings();
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'deepinfer-tiers-'));
process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
const store = path.join(folder, 'store');

const story = Array(80).fill('The fox carried the lamp through the quiet wood.').join(' ');
const off = { thinking: { type: 'disabled' } };
const ask = (content, more = {}) => ({ model: 'nano', messages: [{ role: 'user', content }], max_tokens: 8, seed: 5, ...off, ...more });
// Windows would make answers depend on more than pages; what is stored is to be fetched whatever the machine is busy with.
const flags = ['--window-snapshot-memory', '0', '--kv-store', store, '--no-kv-cut-over'];
const start = (...more) => serve(program, ...flags, ...more);
const chat = async (server, content, more = {}, headers = {}) => {
  const { status, body } = await post(server.url, '/v1/chat/completions', ask(content, more), headers);
  assert.equal(status, 200, JSON.stringify(body));
  return { text: body.choices[0].message.content, usage: body.usage, cache: body.usage.deepinfer?.cache };
};
const written = async (server, pages) => {
  await eventually('the store has the pages', async () => (await metric(server.url, 'deepinfer:kv_pages_by_tier', 'tier="local"')) >= pages);
};

let cold;
await test('without tiers nothing is said of them', async () => {
  const server = await serve(program, '--window-snapshot-memory', '0');
  cold = await chat(server, story, { seed: 5 });
  assert.equal(cold.cache, undefined);
  const again = await chat(server, story);
  assert.ok(again.usage.prompt_tokens_details.cached_tokens > 0);
  cold.hit = again;
  await server.stop();
});

await test('a server that is killed finds its prefixes again', async () => {
  const first = await start();
  const miss = await chat(first, story);
  assert.equal(miss.text, cold.text);
  assert.deepEqual(miss.cache.tokens, { device: 0 });
  assert.equal(miss.cache.miss, 'not_stored');
  const pages = Math.floor(miss.usage.prompt_tokens / 128);
  await written(first, pages);
  assert.equal((await first.stop('SIGKILL')).signal, 'SIGKILL');

  const second = await start('--kv-host-bytes', '16MiB');
  const hit = await chat(second, story);
  // In bounded mode a hit is a hit, wherever it comes from.
  assert.equal(hit.text, cold.hit.text);
  assert.equal(hit.cache.tokens.local, cold.hit.usage.prompt_tokens_details.cached_tokens);
  assert.equal(hit.cache.tokens.device, 0);
  assert.equal(hit.cache.miss, null);
  assert.ok(hit.cache.pulled_bytes > 0 && hit.cache.pull_seconds > 0 && hit.cache.ttl_seconds > 3600, JSON.stringify(hit.cache));
  const third = await chat(second, story);
  assert.equal(third.cache?.tokens.local ?? 0, 0, 'the device has it now');
  assert.equal(third.text, hit.text);
  const count = (name, label = 'tier="local"') => metric(second.url, `deepinfer:${name}`, label);
  assert.equal(await count('kv_tier_pages_read_total'), hit.cache.tokens.local / 128);
  assert.equal(await count('kv_tier_read_bytes_total'), hit.cache.pulled_bytes);
  assert.equal(await count('kv_tier_available'), 1);
  assert.equal(await count('kv_pulls_total', ''), 1);
  assert.equal(await metric(second.url, 'vllm:prompt_tokens_by_source_total', 'external_kv_transfer'), hit.cache.tokens.local);
  const { requests } = await (await fetch(`${second.url}/debug/timeline?last=2`)).json();
  const phases = requests[1].phases.map((p) => p.name);
  assert.ok(phases.includes('lookup') && phases.includes('load'), phases.join(' '));
  await second.stop();
});

await test('clients of other people take it', async () => {
  const server = await start();
  const openai = new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0 });
  const anthropic = new Anthropic({ apiKey: 'none', baseURL: server.url, maxRetries: 0 });
  const body = await openai.chat.completions.create(ask(story));
  assert.ok(body.usage.deepinfer.cache.tokens.local > 0);
  let usage;
  const stream = await openai.chat.completions.create(ask(`${story} Then?`, { stream: true, stream_options: { include_usage: true } }));
  for await (const chunk of stream) usage = chunk.usage ?? usage;
  assert.ok(usage.deepinfer.cache.tokens.device > 0);
  const response = await openai.responses.create({ model: 'nano', input: story, max_output_tokens: 4, reasoning: { effort: 'none' } });
  assert.equal(typeof response.usage.deepinfer.cache.tokens.device, 'number');
  const message = await anthropic.messages.create({ model: 'nano', max_tokens: 4, messages: [{ role: 'user', content: `A ${story}` }], ...off });
  assert.equal(message.usage.deepinfer.cache.miss, 'not_stored');
  await server.stop();
});

await test('a key has its own prefixes, whatever its place in the list', async () => {
  const key = (name) => ({ 'x-api-key': name });
  const seen = async (server, name, more) => (await chat(server, story, more, key(name))).cache;
  const before = await start('--api-key', 'key-a', '--api-key', 'key-b');
  assert.equal((await seen(before, 'key-a')).miss, 'not_stored', 'what was asked without a key is not its own');
  await before.stop();
  const after = await start('--api-key', 'key-b', '--api-key', 'key-c', '--api-key', 'key-a');
  for (const stranger of ['key-b', 'key-c']) assert.equal((await seen(after, stranger)).miss, 'not_stored', stranger);
  assert.equal((await seen(after, 'key-b', { cache_salt: 'key-a' })).miss, 'not_stored', 'a salt of its own choice helps nobody');
  assert.ok((await seen(after, 'key-a')).tokens.local > 0);
  await after.stop();
});

await test('what a server recorded of its traffic says how long to keep', async () => {
  const file = path.join(folder, 'intervals.json');
  const server = await start('--kv-intervals', file);
  const classed = (cache_class, i) => chat(server, `${cache_class} ${i} ${story}`, { cache_class });
  for (let round = 0; round < 5; ++round) {
    for (let i = 0; i < 3; ++i) await classed('agent', i);
    await classed('chat', round);
  }
  const uses = await metric(server.url, 'deepinfer:kv_page_uses_total', 'class="agent"');
  const ended = await metric(server.url, 'deepinfer:kv_revisit_interval_seconds_count', 'class="agent"');
  assert.ok(uses > 0 && ended === (uses * 4) / 5, `${ended} of ${uses}`);
  assert.equal(await metric(server.url, 'deepinfer:kv_revisit_interval_seconds_count', 'class="chat"'), 0);
  await server.stop();
  const plan = (...more) => spawnSync(program, ['cache', 'plan', '--intervals', file, ...more], { encoding: 'utf8' });
  const { status, stdout, stderr } = plan('--json', '--pull-rate', '1GB');
  assert.equal(status, 0, stderr);
  const { classes, prefill_tokens_per_second, page_bytes } = JSON.parse(stdout);
  const of = (name) => classes.find((c) => c.class === name);
  assert.equal(of('agent').uses, uses);
  assert.equal(of('agent').revisits, ended);
  assert.ok(prefill_tokens_per_second > 0 && page_bytes > 0);
  assert.match(plan('--pull-rate', '1GB').stdout, /--kv-ttl-agent \d+/);
});

const shared = path.join(folder, 'shared');
fs.mkdirSync(shared);
await test('servers that share a folder find what each other computed, and what one was killed over', async () => {
  const both = ['--window-snapshot-memory', '0', '--kv-shared', shared, '--no-kv-cut-over'];
  const one = await serve(program, ...both);
  const two = await serve(program, ...both);
  const first = await chat(one, story);
  assert.equal(first.cache.miss, 'not_stored');
  for (let i = 0; i < 8; ++i) await chat(one, `Later ${i} ${story}`);
  const count = (server, name) => metric(server.url, `deepinfer:${name}`, 'tier="shared"');
  await eventually('it has been written', async () => (await count(one, 'kv_tier_pages_written_total')) >= cold.hit.usage.prompt_tokens_details.cached_tokens / 128);
  const hit = await chat(two, story);
  assert.equal(hit.text, cold.hit.text);
  assert.ok(hit.cache.tokens.shared > 0);
  // Writers that are killed while they write leave nothing that is wrong.
  for (let round = 0; round < 3; ++round) {
    const writer = await serve(program, ...both);
    const prompts = Array.from({ length: 6 }, (_, i) => chat(writer, `${i % 2} ${round} ${story}`).catch(() => null));
    await new Promise((resolve) => setTimeout(resolve, 150 + 200 * round));
    await writer.stop('SIGKILL');
    await Promise.all(prompts);
  }
  // Exact answers are those of a server that knows of no store.
  const exact = await serve(program, ...both, '--replay', 'exact');
  const plain = await serve(program, '--window-snapshot-memory', '0', '--no-enable-prefix-caching', '--replay', 'exact');
  for (let round = 0; round < 3; ++round)
    assert.equal((await chat(exact, `0 ${round} ${story}`)).text, (await chat(plain, `0 ${round} ${story}`)).text);
  for (const server of [one, two, exact, plain]) await server.stop();
});

if (process.argv[3] !== undefined)
  await test('a store that has become slow is not waited for, and is used again when it is fast', async () => {
    const slow = (milliseconds) => fs.writeFileSync(`${shared}.slow`, String(milliseconds));
    Object.assign(process.env, { LD_PRELOAD: process.argv[3], DEEPINFER_SLOW_DIR: shared });
    const server = await serve(program, '--window-snapshot-memory', '0', '--kv-shared', shared);
    delete process.env.LD_PRELOAD;
    slow(2000);
    const start = Date.now();
    const missed = await chat(server, story);
    assert.equal(missed.text, cold.text, 'as if nothing were stored');
    assert.equal(missed.cache.miss, 'slow');
    console.log(`     ${Date.now() - start} ms beside a store that takes 2000 ms a read`);
    fs.rmSync(`${shared}.slow`);
    let found = 0;
    for (let i = 0; i < 8 && found === 0; ++i) {
      await new Promise((resolve) => setTimeout(resolve, 700));
      found = (await chat(server, `Later ${i} ${story}`)).cache.tokens.shared ?? 0;
    }
    assert.ok(found > 0);
    await server.stop();
  });

await test('a folder that is no store, or another server’s, is refused with its name', async () => {
  const server = await start();
  await assert.rejects(start(), (error) => error.message.includes(store));
  const file = path.join(folder, 'file');
  fs.writeFileSync(file, 'x');
  await assert.rejects(serve(program, '--kv-store', file), (error) => error.message.includes(file));
  await server.stop();
});

await test('no warning was printed', () => assert.deepEqual(warnings, []));
finish();
