// Judges samples of constrained generation under random logits (judge.mjs).
//   node samples.mjs PATH/TO/grammar_samples COUNT [SEED]
// Every text that ended must be valid; one that was cut by the token limit is counted, and may be at most one in fifty
// (8 of 500 with the schemas that the repository has of its own, 5 with those of shared/vectors).
import { spawn } from 'node:child_process';
import readline from 'node:readline';
import { unjudged, verdict } from './judge.mjs';

const [program, count, seed = '1'] = process.argv.slice(2);
const child = spawn(program, [count, seed], { stdio: ['ignore', 'pipe', 'inherit'] });
const tally = {};
const specs = new Set();
let shown = 0;
for await (const line of readline.createInterface({ input: child.stdout })) {
  let sample;
  try {
    sample = JSON.parse(line);
  } catch {
    break;  // the tool was stopped in the middle of a line; the count tells
  }
  specs.add(`${sample.kind} ${JSON.stringify(sample.spec)}`);
  let result = 'length';
  if (sample.finish === 'stop') {
    try {
      result = verdict(sample);
    } catch (error) {
      result = `invalid: ${error.message}`;
    }
  }
  const name = result.startsWith('invalid') ? 'invalid' : result;
  tally[name] = (tally[name] ?? 0) + 1;
  if (name === 'invalid' && ++shown <= 10) console.log(`${result}\n  ${sample.text.slice(0, 300)}\n  ${JSON.stringify(sample.spec).slice(0, 600)}`);
}
const code = child.exitCode ?? (await new Promise((resolve) => child.on('exit', resolve)));
const total = Object.values(tally).reduce((a, b) => a + b, 0);
console.log(`${total} samples of ${specs.size} grammars: ${JSON.stringify(tally)}`);
for (const error of unjudged().slice(0, 5)) console.log(`not judged: ${error.message.slice(0, 200)}`);
const enough = total === Number(count) && (tally.valid ?? 0) >= 0.95 * total;
process.exitCode = code === 0 && enough && !tally.invalid && (tally.length ?? 0) <= total / 50 ? 0 : 1;
