// Where the time to the first token went: for a mixed load on nano, the phases that the server tells of each request add up to what
// the client measured. node timeline_client.mjs PATH/TO/deepinfer
import assert from 'node:assert/strict';
import http from 'node:http';
import { finish, post, serve, test } from './server_process.mjs';

const kShare = 0.02; // of the time to the first token that may lie outside of all phases
const kTransport = 2; // ms that a request and an answer may take through sockets, however short the whole is
const kRounds = 5; // in which a stall of the machine may have hit the client, or the server's thread that writes

const server = await serve(process.argv[2], '--max-num-seqs', '3', '--speculative-config', '{"method": "dspark"}');
const agent = new http.Agent({ keepAlive: true, maxSockets: 32 });
const story = Array(40).fill('The fox carried the lamp through the quiet wood.').join(' ');

/// How late the loop of this process was at most between two moments: what it measures is known no better than that.
const late = [];
let due = performance.now() + 2;
const clock = setInterval(() => {
  const now = performance.now();
  late.push([now, Math.max(now - due, 0)]);
  due = now + 2;
}, 2);
const lag = (from, to) => Math.max(0, ...late.filter(([at, by]) => at >= from && at - by <= to).map(([, by]) => by));

/// Streams one answer: {id, begin, first} in ms of this process's clock.
function stream(id, content, more = {}) {
  const body = JSON.stringify({ model: 'nano', messages: [{ role: 'user', content }], max_tokens: 8, stream: true, thinking: { type: 'disabled' }, ...more });
  return new Promise((resolve, reject) => {
    const headers = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body), 'x-request-id': id };
    const begin = performance.now();
    const request = http.request(`${server.url}/v1/chat/completions`, { method: 'POST', agent, headers }, (response) => {
      let text = '';
      let first = null;
      response.on('data', (piece) => {
        text += piece;
        // The first event may only say whose turn it is.
        if (first === null && /"content":"[^"]/.test(text)) first = performance.now();
      });
      response.on('end', () => (response.statusCode === 200 && first !== null ? resolve({ id, begin, first }) : reject(new Error(`${response.statusCode}: ${text}`))));
    });
    request.on('error', reject);
    request.end(body);
  });
}

/// Short and long prompts, some of them known, more than there are places, a form, and answers that run meanwhile.
async function load(round) {
  const asked = [];
  for (let i = 0; i < 16; ++i) {
    const content = [`Hello ${round} ${i}.`, story, `${round} ${i} ${story}`, `${story} ${story} ${i}`][i % 4];
    const form = i % 8 === 5 ? { structured_outputs: { regex: `[a-z]{1,${8 + i}} [a-z]{2,9}` } } : {};
    asked.push(stream(`mixed-${round}-${i}`, content, { max_tokens: 4 + 5 * (i % 5), ignore_eos: i % 8 !== 5, ...form }));
    if (i % 5 === 4) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return Promise.all(asked);
}

await test('the phases of each request add up to what its client measured', async () => {
  await post(server.url, '/v1/chat/completions', { model: 'nano', messages: [{ role: 'user', content: 'Warm up.' }], max_tokens: 4 });
  let why = [];
  for (let round = 0; round < kRounds; ++round) {
    const asked = await load(round);
    const { requests } = await (await fetch(`${server.url}/debug/timeline?last=1000`)).json();
    const told = new Map(requests.map((r) => [r.x_request_id, r]));
    why = [];
    const seen = new Set();
    for (const { id, begin, first } of asked) {
      const record = told.get(id);
      assert.ok(record, `${id} is not told of`);
      const phases = record.phases.filter((p) => p.name !== 'decode').sort((a, b) => a.begin - b.begin);
      phases.forEach((p) => seen.add(p.name));
      for (let i = 1; i < phases.length; ++i) assert.ok(phases[i].begin >= phases[i - 1].end - 1e-9, `${id}: ${phases[i - 1].name} and ${phases[i].name} overlap`);
      const sum = phases.reduce((total, p) => total + (p.end - p.begin), 0) * 1e3;
      const measured = first - begin;
      // The server's moments lie between the client's: this holds however late anybody is.
      assert.ok(sum <= measured + 0.5, `${id}: phases of ${sum} ms, the client measured ${measured}`);
      const bound = Math.max(kShare * measured, kTransport) + lag(begin, begin + 20) + lag(first - 20, first);
      if (measured - sum > bound) why.push(`${id}: ${measured.toFixed(2)} ms measured, ${sum.toFixed(2)} told, ${bound.toFixed(2)} allowed`);
    }
    for (const name of ['receive', 'queue', 'match', 'prefill', 'first_decode', 'publish', 'deliver']) assert.ok(seen.has(name), `no phase ${name} in this load`);
    if (why.length === 0) return;
    console.log(`     round ${round}: ${why.length} of ${asked.length} outside`);
  }
  assert.deepEqual(why, []);
});

clearInterval(clock);
agent.destroy();
await test('it ends on SIGTERM', async () => assert.deepEqual(await server.stop(), { code: 0, signal: null }));
finish();
