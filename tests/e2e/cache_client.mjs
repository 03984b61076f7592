// The prefix cache of the built program on nano, as clients see it: who shares it, and that it can be reset (CASES 31).
// node cache_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import { eventually, finish, metric, post, serve, test } from './server_process.mjs';

const program = process.argv[2];
const story = Array(60).fill('The fox carried the lamp through the quiet wood.').join(' ');
const key = (name) => ({ 'x-api-key': name });
async function cached(server, headers, more = {}) {
  const body = { model: 'nano', messages: [{ role: 'user', content: story }], max_tokens: 2, thinking: { type: 'disabled' }, ...more };
  const reply = await post(server.url, '/v1/chat/completions', body, headers);
  assert.equal(reply.status, 200, JSON.stringify(reply.body));
  return reply.body.usage.prompt_tokens_details.cached_tokens;
}
const keys = ['--api-key', 'key-a', '--api-key', 'key-b'];

const apart = await serve(program, ...keys, '--admin-port', '0');
await test('keys do not share what they have cached', async () => {
  assert.equal(await cached(apart, key('key-a')), 0);
  const hit = await cached(apart, key('key-a'));
  assert.ok(hit > 0);
  assert.equal(await cached(apart, key('key-b')), 0);
  assert.equal(await cached(apart, key('key-b')), hit);
});
await test('nor does a salt of the request', async () => {
  assert.equal(await cached(apart, key('key-a'), { cache_salt: 'x' }), 0);
  assert.ok((await cached(apart, key('key-a'), { cache_salt: 'x' })) > 0);
  assert.equal(await cached(apart, key('key-b'), { cache_salt: 'x' }), 0);
  assert.equal(await cached(apart, key('key-a'), { cache_salt: 'y' }), 0);
});
await test('a reset frees the pages, and nothing is found again', async () => {
  const pages = (name) => metric(apart.url, `deepinfer:${name}`, '', key('key-a'));
  await eventually('the pages stay in the cache', async () => (await pages('kv_pages_cached')) > 0);
  assert.equal((await fetch(`${apart.admin}/reset_prefix_cache`, { method: 'POST' })).status, 401);
  assert.equal((await post(apart.url, '/reset_prefix_cache', {}, key('key-a'))).status, 404);
  assert.equal((await post(apart.admin, '/reset_prefix_cache', {}, key('key-a'))).status, 200);
  await eventually('the pages are free', async () => (await pages('kv_pages_cached')) === 0 && (await pages('kv_pages_free')) === (await pages('kv_pages')));
  assert.equal(await pages('window_snapshots'), 0);
  for (const name of ['key-a', 'key-b']) assert.equal(await cached(apart, key(name)), 0);
  assert.ok((await cached(apart, key('key-a'))) > 0);
});
await apart.stop();

const together = await serve(program, ...keys, '--shared-prefix-cache');
await test('unless they are told to share', async () => {
  assert.equal(await cached(together, key('key-a')), 0);
  assert.ok((await cached(together, key('key-b'))) > 0);
});
await together.stop();
finish();
