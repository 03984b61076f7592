// A real Prometheus server scrapes the built program on nano, and its queries say what the client counts.
// node prometheus_scrape.mjs PATH/TO/deepinfer; exit code 77 (skipped) without the program `prometheus`.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { eventually, finish, post, serve, test } from './server_process.mjs';

if (spawnSync('prometheus', ['--version']).error) {
  console.log('skipped: no prometheus here (apt-get install prometheus)');
  process.exit(77);
}
const key = 'scrape-me';
const server = await serve(process.argv[2], '--api-key', key);
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'deepinfer-prometheus-'));
const target = new URL(server.url).host;
fs.writeFileSync(path.join(folder, 'prometheus.yml'), `
global: { scrape_interval: 200ms }
scrape_configs:
  - job_name: deepinfer
    authorization: { credentials: ${key} }
    static_configs: [{ targets: ['${target}'] }]
`);
/// A port that was free a moment ago.
const free = () => new Promise((resolve) => {
  const probe = net.createServer().listen(0, '127.0.0.1', () => {
    const { port } = probe.address();
    probe.close(() => resolve(port));
  });
});
const url = `http://127.0.0.1:${await free()}`;
const prometheus = spawn('prometheus', [
  `--config.file=${path.join(folder, 'prometheus.yml')}`, `--storage.tsdb.path=${path.join(folder, 'data')}`,
  `--web.listen-address=${new URL(url).host}`, '--log.level=error'], { stdio: ['ignore', 'inherit', 'inherit'] });
const ended = new Promise((resolve) => prometheus.on('exit', resolve));
process.on('exit', () => {
  prometheus.kill('SIGKILL');
  fs.rmSync(folder, { recursive: true, force: true });
});

const api = async (what) => (await (await fetch(`${url}/api/v1/${what}`)).json()).data;
/// The only sample of a query, as a number; null if there is none.
async function query(text) {
  const { result } = await api(`query?query=${encodeURIComponent(text)}`);
  return result.length === 1 ? Number(result[0].value[1]) : null;
}

await test('the target is up, with its key', async () => {
  await eventually('a first scrape', async () => {
    try {
      return (await query('up{job="deepinfer"}')) === 1;
    } catch {
      return false; // not listening yet
    }
  });
  const [one] = (await api('targets')).activeTargets;
  assert.equal(one.lastError, '');
});

await test('queries say what the client counts', async () => {
  const seen = { prompt: 0, completion: 0 };
  for (let i = 0; i < 5; ++i) {
    const body = { model: 'nano', messages: [{ role: 'user', content: `Hello ${i}.` }], max_tokens: 5 + i, thinking: { type: 'disabled' } };
    const { usage } = (await post(server.url, '/v1/chat/completions', body, { Authorization: `Bearer ${key}` })).body;
    seen.prompt += usage.prompt_tokens;
    seen.completion += usage.completion_tokens;
  }
  await eventually('all of it was scraped', async () => (await query('sum(vllm:generation_tokens_total)')) === seen.completion);
  assert.equal(await query('sum(vllm:prompt_tokens_total)'), seen.prompt);
  await eventually('the ends, too', async () => (await query('sum(vllm:request_success_total)')) === 5);
  await eventually('the histograms, too', async () => (await query('sum(vllm:time_to_first_token_seconds_count)')) === 5);
  assert.equal(await query('max(vllm:time_to_first_token_seconds_bucket{le="+Inf"})'), 5);
  const quantile = await query('histogram_quantile(0.5, sum by (le) (vllm:time_to_first_token_seconds_bucket))');
  assert.ok(quantile > 0 && Number.isFinite(quantile), `${quantile}`);
});

await test('every family has come, with its type and help', async () => {
  const text = await (await fetch(`${server.url}/metrics`, { headers: { 'x-api-key': key } })).text();
  const types = new Map([...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map((m) => [m[1], m[2]]));
  const known = await api('metadata');
  for (const [name, type] of types) {
    assert.equal(known[name]?.[0].type, type, name);
    assert.ok(known[name][0].help.length > 10, name);
  }
});

await test('the queries of the guide work', async () => {
  const guide = fs.readFileSync(new URL('../../docs/guides/observability.md', import.meta.url), 'utf8');
  const queries = [...guide.matchAll(/^```promql\n([^]*?)^```/gm)].flatMap((m) => m[1].trim().split('\n')).filter((line) => !line.startsWith('#'));
  assert.ok(queries.length >= 5);
  for (const text of queries) {
    const reply = await (await fetch(`${url}/api/v1/query?query=${encodeURIComponent(text)}`)).json();
    assert.equal(reply.status, 'success', text);
    assert.ok(reply.data.result.length > 0, `${text}: nothing`);
  }
});

prometheus.kill('SIGTERM');
await ended;
await test('the server ends on SIGTERM', async () => assert.deepEqual(await server.stop(), { code: 0, signal: null }));
finish();
