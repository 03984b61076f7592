// `deepinfer bench serve` against the server: what the client counts is what the server counts. `node bench_serve_client.mjs PROGRAM`
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { spawn, spawnSync } from 'node:child_process';
import { metric, serve, test, finish } from './server_process.mjs';

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
      const run = await bench('serve', '--base-url', server.url, '--endpoint', endpoint, '--no-probe', '--num-prompts', '24', '--input-len', '20', '--output-len', '8', '--request-rate', '100', '--json', '-');
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

await test('sessions say what the model answered, and find it in the cache', async () => {
  for (const [server, endpoint] of [[real, '/v1/chat/completions'], [real, '/v1/completions'], [fake, '/v1/chat/completions']]) {
    const before = await metric(server.url, 'vllm:prompt_tokens_total');
    const run = await bench('serve', '--base-url', server.url, '--endpoint', endpoint, '--no-probe', '--num-prompts', '12', '--num-clients', '2', '--num-rounds', '3', '--input-len', '200', '--round-input-len', '60', '--output-len', '12', '--think-time', '0.01', '--json', '-');
    assert.equal(run.code, 0, run.err);
    const [result] = lines(run.out);
    assert.equal(result.completed, 12, JSON.stringify(result.errors));
    assert.equal(result.not_sent, 0);
    assert.ok(result.max_concurrent_requests <= 2);
    assert.equal((await metric(server.url, 'vllm:prompt_tokens_total')) - before, result.total_input_tokens);
    assert.deepEqual(result.rounds.map((r) => r.completed), [4, 4, 4]);
    const input = result.rounds.map((r) => r.input_tokens);
    assert.ok(input[1] > input[0] + 4 * 60 && input[2] > input[1] + 4 * 60, `${input}: each round repeats the ones before`);
    if (server === real) assert.ok(result.rounds[1].cached_tokens > 0 && result.rounds[2].cached_tokens > result.rounds[1].cached_tokens, JSON.stringify(result.rounds));
  }
});

/// A server that answers with two tokens, unless `refuse(body)` says with which status and text it does not.
async function picky(refuse) {
  const bodies = [];
  const server = http.createServer((request, response) => {
    let text = '';
    request.on('data', (piece) => (text += piece));
    request.on('end', () => {
      if (request.method === 'GET') return response.end(JSON.stringify({ data: [{ id: 'picky' }] }));
      const body = JSON.parse(text);
      bodies.push(body);
      const refusal = refuse(body);
      if (refusal) return response.writeHead(refusal.status).end(refusal.text);
      const usage = body.stream_options ? ', "usage": {"prompt_tokens": 5, "completion_tokens": 2}' : '';
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      response.end(`data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": "b"}]${usage}}\n\ndata: [DONE]\n\n`);
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, bodies, close: () => server.close() };
}

await test('fields that a server refuses are left out, and it is said', async () => {
  const cases = [
    { refuse: (b) => b.ignore_eos && { status: 400, text: 'Unrecognized request argument supplied: ignore_eos' }, said: ['ignore_eos'], fields: { ignore_eos: undefined, max_tokens: 7 } },
    { refuse: (b) => b.ignore_eos && { status: 422, text: '{"detail": "extra fields not permitted"}' }, said: ['ignore_eos'], fields: { ignore_eos: undefined } },
    { refuse: (b) => b.stream_options && { status: 400, text: 'stream_options is not supported' }, said: ['stream_options'], fields: { ignore_eos: true, stream_options: undefined } },
    { refuse: (b) => b.max_tokens && { status: 400, text: "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead." }, said: ['max_tokens'], fields: { max_tokens: undefined, max_completion_tokens: 7 } },
    { refuse: (b) => (b.ignore_eos || b.stream_options) && { status: 400, text: 'no' }, said: ['ignore_eos', 'stream_options'], fields: { ignore_eos: undefined, stream_options: undefined } },
  ];
  for (const { refuse, said, fields } of cases) {
    const server = await picky(refuse);
    const run = await bench('serve', '--base-url', server.url, '--num-prompts', '3', '--output-len', '7', '--json', '-');
    assert.equal(run.code, 0, run.err);
    const [result] = lines(run.out);
    assert.equal(result.completed, 3, JSON.stringify(result.errors));
    assert.equal(result.ignore_eos, !said.includes('ignore_eos'));
    assert.equal(result.counted_by_client, said.includes('stream_options') ? 3 : 0);
    for (const [field, value] of Object.entries(fields)) assert.deepEqual(server.bodies.at(-1)[field], value, field);
    assert.deepEqual(run.err.trim().split('\n').map((line) => /refuses (\w+)/.exec(line)?.[1]), said);
    server.close();
  }
  for (const [status, text] of [[400, 'this model does not exist'], [401, 'who are you?'], [500, 'oh no']]) {
    const server = await picky(() => ({ status, text }));
    const run = await bench('serve', '--base-url', server.url, '--num-prompts', '3');
    assert.equal(run.code, 1);
    assert.ok(run.err.includes(`a first short request failed: HTTP ${status}: ${text}`) && run.out === '', run.err);
    server.close();
  }
});

await test('a search for the knee ends, and says where', async () => {
  const file = path.join(folder, 'knee.jsonl');
  const slow = await serve(program, '--fake-engine', '--fake-rate', '50', '--max-num-seqs', '4'); // 50 requests of 4 tokens a second
  const run = await bench('serve', '--base-url', slow.url, '--find-knee', '--request-rate', '20', '--seconds-per-rate', '0.5', '--input-len', '4', '--output-len', '4', '--goodput', 'e2el:300', '--json', file, '--html', path.join(folder, 'knee.html'));
  assert.equal(run.code, 0, run.err);
  const results = lines(fs.readFileSync(file, 'utf8'));
  await slow.stop();
  assert.equal(results[0].request_rate, 20);
  const rates = (kept) => results.filter((r) => r.kept_up === kept).map((r) => r.request_rate);
  const [low, high] = [Math.max(0, ...rates(true)), Math.min(Infinity, ...rates(false))];
  const said = run.out.trim().split('\n').at(-1);
  if (low === 0) assert.match(said, /does not keep up with/);
  else assert.ok(said.includes(`keeps up with ${low} `) && (high === Infinity || (said.endsWith(` not with ${high}`) && high <= low * 1.11)) || run.out.includes('limit may be its own'), `${said}: ${low} ${high}`);
});

await test('TLS: the certificate is checked, unless nobody wants to know', async () => {
  const [cert, key] = ['cert.pem', 'key.pem'].map((name) => path.join(folder, name));
  const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=test', '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert]);
  if (made.error) return console.log('     skipped: no openssl here (apt-get install openssl)');
  assert.equal(made.status, 0, String(made.stderr));
  const secure = await serve(program, '--fake-engine', '--fake-rate', '200', '--ssl-certfile', cert, '--ssl-keyfile', key, '--api-key', 'secret');
  assert.match(secure.url, /^https:/);
  const run = (...more) => bench('serve', '--base-url', secure.url, '--api-key', 'secret', '--num-prompts', '6', '--output-len', '4', '--max-concurrency', '2', '--json', '-', ...more);
  const doubtful = await run();
  assert.equal(doubtful.code, 1);
  assert.match(doubtful.err, /certificate verify failed/);
  for (const flags of [['--cacert', cert], ['--insecure']]) {
    const good = await run(...flags);
    assert.equal(good.code, 0, good.err);
    const [result] = lines(good.out);
    assert.equal(result.completed, 6, JSON.stringify(result.errors));
    assert.equal(result.server_counters['vllm:generation_tokens_total'], result.total_output_tokens, 'the counters, too, come over TLS');
  }
  await secure.stop();
});

await test('bad flags and files are one line that names them', async () => {
  const text = path.join(folder, 'words.txt');
  fs.writeFileSync(text, 'no result\n');
  for (const [args, words] of [
    [['serve', '--base-url', 'localhost'], '--base-url is "localhost"'],
    [['serve', '--base-url', fake.url, '--goodput', 'ttft'], '--goodput is "ttft"'],
    [['serve', '--base-url', fake.url, '--request-rate', '0'], '--request-rate'],
    [['serve', '--base-url', fake.url, '--insecure'], '--insecure needs a --base-url of https'],
    [['serve', '--base-url', 'https://127.0.0.1:1', '--cacert', path.join(folder, 'none')], '--cacert'],
    [['serve', '--base-url', fake.url, '--endpoint', 'v1 x'], '--endpoint is "v1 x"'],
    [['serve', '--base-url', fake.url, '--api-key', 'a\r\nX: y'], '--api-key has a line break'],
    [['serve', '--base-url', fake.url, '--think-time', '1'], '--think-time needs --num-rounds'],
    [['serve', '--base-url', fake.url, '--num-clients', '2', '--max-concurrency', '2'], '--num-clients does not go with --max-concurrency'],
    [['serve', '--base-url', fake.url, '--find-knee', '--request-rate', '1,2'], '--find-knee does not go with a list'],
    [['serve', '--base-url', fake.url, '--find-knee', '--request-rate', 'inf'], '--find-knee does not go with --request-rate inf'],
    [['serve', '--base-url', fake.url, '--num-prompts', '5', '--seconds-per-rate', '2', '--request-rate', '3'], '--seconds-per-rate does not go with --num-prompts'],
    [['serve', '--base-url', fake.url, '--extra-body', '{"stream": false}'], '--extra-body has stream'],
    [['serve', '--base-url', fake.url, '--extra-body', '[1]'], '--extra-body is "[1]"'],
    [['serve', '--base-url', fake.url, '--max-input-len', '3'], '--max-input-len needs a --trace'],
    [['serve', '--base-url', fake.url, '--trace', path.join(folder, 'a.jsonl'), '--num-rounds', '2'], '--num-rounds does not go with --trace'],
    [['serve', '--base-url', fake.url, '--num-prefixes', '2'], '--num-prefixes is 2'],
    [['serve', '--base-url', fake.url, '--json', path.join(folder, 'no', 'such')], '--json'],
    [['serve', '--base-url', 'http://127.0.0.1:1'], '127.0.0.1:1/v1/models'],
    [['report', path.join(folder, 'none'), '-o', '-'], 'none'],
    [['report', text, '-o', '-'], 'words.txt: line 1: not a JSON object'],
    [['report', program, '-o', '-'], 'bytes'],
  ]) {
    const run = await bench(...args);
    assert.notEqual(run.code, 0, args.join(' '));
    assert.ok(run.err.includes(words) && run.err.trim().split('\n').length <= 2, `${args.join(' ')}: ${run.err}`);
  }
});

await fake.stop();
await test('a server that is gone makes failed requests, not a hang', async () => {
  const told = await bench('serve', '--base-url', fake.url, '--model', 'x');
  assert.equal(told.code, 1);
  assert.match(told.err, /a first short request failed: connect: /);
  const run = await bench('serve', '--base-url', fake.url, '--model', 'x', '--num-prompts', '3', '--no-probe', '--json', '-');
  assert.equal(run.code, 1);
  assert.equal(lines(run.out)[0].failed, 3);
});
await real.stop();
finish();
