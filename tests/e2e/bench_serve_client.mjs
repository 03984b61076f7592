// `deepinfer bench serve` against the server: what the client counts is what the server counts. `node bench_serve_client.mjs PROGRAM`
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { spawn } from 'node:child_process';
import { serve, metric, test, finish } from './server_process.mjs';

const program = process.argv[2];
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'deepinfer-bench-serve-'));
process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));

/// Runs `bench serve`: {code, out, err}. Asynchronous, so that the server's pipes are read meanwhile.
function bench(...args) {
  return new Promise((resolve) => {
    const child = spawn(program, ['bench', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let out = '';
    let err = '';
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (err += data));
    child.on('exit', (code) => resolve({ code, out, err }));
  });
}
const lines = (text) => text.trim().split('\n').map((line) => JSON.parse(line));

const fake = await serve(program, '--fake-engine', '--fake-rate', '200');
const real = await serve(program);

for (const [name, server] of Object.entries({ fake, real })) {
  for (const endpoint of ['/v1/completions', '/v1/chat/completions']) {
    await test(`${name} ${endpoint}: counts agree`, async () => {
      const before = await metric(server.url, 'vllm:generation_tokens_total');
      const run = await bench('serve', '--base-url', server.url, '--endpoint', endpoint, '--num-prompts', '24', '--input-len', '20', '--output-len', '8', '--request-rate', '100', '--json', '-');
      assert.equal(run.code, 0, run.err);
      const [result] = lines(run.out);
      assert.equal(result.completed, 24, JSON.stringify(result.errors));
      assert.equal(result.failed, 0);
      assert.equal(result.counted_by_client, 0);
      assert.equal((await metric(server.url, 'vllm:generation_tokens_total')) - before, result.total_output_tokens);
      assert.equal(result.server_counters['vllm:generation_tokens_total'], result.total_output_tokens);
      if (endpoint === '/v1/completions') {
        assert.equal(result.total_input_tokens, 24 * 20);
        assert.equal(result.total_output_tokens, 24 * 8);
      }
      for (const key of ['mean_ttft_ms', 'median_tpot_ms', 'p99_itl_ms', 'p99_e2el_ms']) assert.ok(result[key] > 0, key);
    });
  }
}

await test('a sweep with plots, and a report of two', async () => {
  const file = (name) => path.join(folder, name);
  const run = await bench('serve', '--base-url', fake.url, '--num-prompts', '10', '--output-len', '4', '--request-rate', '50,100', '--max-concurrency', '2,4', '--goodput', 'ttft:60000', '--json', file('a.jsonl'), '--svg', file('a.svg'), '--html', file('a.html'));
  assert.equal(run.code, 0, run.err);
  assert.equal(run.out.trim().split('\n').filter((line) => /^ +\d/.test(line)).length, 4, run.out);
  const results = lines(fs.readFileSync(file('a.jsonl'), 'utf8'));
  assert.equal(results.length, 4);
  assert.ok(results.every((r) => r.completed === 10 && r.request_goodput > 0 && r.max_concurrent_requests <= r.max_concurrency));
  assert.match(fs.readFileSync(file('a.svg'), 'utf8'), /^<svg/);
  const report = await bench('report', `ours <1>=${file('a.jsonl')}`, file('a.jsonl'), '-o', file('report.html'));
  assert.equal(report.code, 0, report.err);
  const page = fs.readFileSync(file('report.html'), 'utf8');
  assert.ok(page.includes('ours &lt;1&gt;') && !/src=|https?:\/\/(?!www\.w3\.org)/.test(page));
});

await test('bad flags and files are one line that names them', async () => {
  for (const [args, words] of [
    [['serve', '--base-url', 'localhost'], '--base-url is "localhost"'],
    [['serve', '--base-url', fake.url, '--goodput', 'ttft'], '--goodput is "ttft"'],
    [['serve', '--base-url', fake.url, '--request-rate', '0'], '--request-rate'],
    [['serve', '--base-url', 'http://127.0.0.1:1'], '127.0.0.1:1/v1/models'],
    [['report', path.join(folder, 'none'), '-o', '-'], 'none: cannot read'],
    [['report', program, '-o', '-'], 'line 1'],
  ]) {
    const run = await bench(...args);
    assert.notEqual(run.code, 0, args.join(' '));
    assert.ok(run.err.includes(words) && run.err.trim().split('\n').length <= 2, `${args.join(' ')}: ${run.err}`);
  }
});

await fake.stop();
await test('a server that is gone makes failed requests, not a hang', async () => {
  const run = await bench('serve', '--base-url', fake.url, '--model', 'x', '--num-prompts', '3', '--json', '-');
  assert.equal(run.code, 1);
  assert.equal(lines(run.out)[0].failed, 3);
});
await real.stop();
finish();
