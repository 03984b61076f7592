// Our tokenizer and others on the same documents, file and machine, in turns.
//   node peers.mjs --bench build/release/bin/tokenizer_bench --tokenizer FILE [--seconds S] [--rounds N] [texts...] > results.json
// Peers, each used if found below DEEPINFER_NPM (default tests/e2e/node_modules):
//   tokenizers                 Hugging Face's Rust library
//   @huggingface/tokenizers    Hugging Face in JavaScript
//   @lenml/tokenizers          a fork of transformers.js in JavaScript
// Every figure is one thread over 16 KB documents, one document a call (RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM keep the Rust
// library to one); the median of the rounds counts. That the ids are the same is the business of tests/e2e/tokenizer_compare.mjs.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

process.env.RAYON_NUM_THREADS = '1';
process.env.TOKENIZERS_PARALLELISM = 'false';
const here = path.dirname(fileURLToPath(import.meta.url));
const modules = process.env.DEEPINFER_NPM ?? path.join(here, '../../tests/e2e/node_modules');
const require = createRequire(path.join(modules, 'here.js'));
const args = { seconds: '2', rounds: '3' };
const texts = [];
for (let i = 2; i < process.argv.length; ++i) {
  if (process.argv[i].startsWith('--')) args[process.argv[i].slice(2)] = process.argv[++i];
  else texts.push(process.argv[i]);
}
const json = JSON.parse(fs.readFileSync(args.tokenizer));
const version = (name) => JSON.parse(fs.readFileSync(path.join(modules, name, 'package.json'))).version;

const peers = [];
function peer(name, make) {
  try {
    peers.push({ name: `${name} ${version(name)}`, encode: make(require(name)) });
  } catch (error) {
    console.error(`${name}: ${String(error.message).split('\n')[0]}`);
  }
}
peer('tokenizers', (m) => {
  const t = m.Tokenizer.fromFile(args.tokenizer);
  return async (text) => (await t.encode(text, null, { addSpecialTokens: false })).getIds();
});
peer('@huggingface/tokenizers', (m) => {
  const t = new m.Tokenizer(json, {});
  return async (text) => t.encode(text, { add_special_tokens: false }).ids;
});
peer('@lenml/tokenizers', (m) => {
  const t = m.TokenizerLoader.fromPreTrained({ tokenizerJSON: json, tokenizerConfig: { tokenizer_class: 'LlamaTokenizerFast' } });
  return async (text) => t.encode(text, { add_special_tokens: false });
});

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenizer-bench-'));
const run = (...more) => {
  const r = spawnSync(args.bench, ['--tokenizer', args.tokenizer, ...more, ...texts], { encoding: 'utf8', maxBuffer: 1 << 28 });
  if (r.status !== 0) throw new Error(r.stderr);
  return r.stdout.trim().split('\n').filter(Boolean).map((line) => JSON.parse(line));
};
run('--write', folder);
const median = (list) => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];

const load = os.loadavg()[0];
const results = [];
for (const corpus of ['english', 'chinese', 'code']) {
  const documents = JSON.parse(fs.readFileSync(path.join(folder, `${corpus}.json`)));
  const sizes = documents.map((d) => Buffer.byteLength(d));
  const ours = [];
  const theirs = peers.map(() => []);
  const counts = peers.map(() => 0);
  for (let round = 0; round < Number(args.rounds); ++round) {
    ours.push(run('--corpus', corpus, '--seconds', args.seconds));
    for (let p = 0; p < peers.length; ++p) {
      // As many documents as fit into the time, always from the start, after a few to warm up.
      for (const d of documents.slice(0, 8)) await peers[p].encode(d);
      const start = performance.now();
      let bytes = 0, tokens = 0, i = 0;
      do {
        tokens += (await peers[p].encode(documents[i % documents.length])).length;
        bytes += sizes[i++ % documents.length];
      } while (performance.now() - start < Number(args.seconds) * 1000 || i < 8);
      theirs[p].push(bytes / (performance.now() - start) / 1e3);
      counts[p] = bytes / tokens;
    }
  }
  for (let k = 0; k < ours[0].length; ++k) {
    const figure = ours[0][k];
    figure.value = median(ours.map((round) => round[k].value));
    figure.ceiling = median(ours.map((round) => round[k].ceiling));
    figure.fraction = figure.value / figure.ceiling;
    figure.conditions.rounds = Number(args.rounds);
    if (figure.name.startsWith('encode')) {
      figure.conditions.peers = Object.fromEntries(peers.map((p, i) => [p.name, {
        value: median(theirs[i]), unit: 'MB/s', bytes_per_token: counts[i], ours_is_faster_by: figure.value / median(theirs[i]) }]));
    }
    results.push(figure);
  }
}
results.unshift(...run('--seconds', '0.01').filter((f) => f.unit === 'ms'));
fs.rmSync(folder, { recursive: true });
const date = process.env.BENCH_DATE ?? new Date().toISOString().slice(0, 10);
for (const figure of results) {
  figure.conditions.date = date;
  figure.conditions.tokenizer = `${json.model.merges.length} merges`;
  figure.conditions.node = process.version;
  figure.conditions.load_average_before = load;  // above 1: others were at work on the machine too
}
console.log(`[\n${results.map((r) => JSON.stringify(r)).join(',\n')}\n]`);
