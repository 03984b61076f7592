// Judges samples of constrained generation under a model (judge.mjs): the forms of grammar_samples, asked of a server.
//   node nano_samples.mjs PATH/TO/deepinfer PATH/TO/grammar_samples COUNT [CONCURRENCY]
// Every text that ended must be valid. The model has no reason to end a string soon, so texts cut by the token limit are only counted.
import { spawnSync } from 'node:child_process';
import { finish, serve, test } from '../e2e/server_process.mjs';
import { verdict } from './judge.mjs';

const [program, samples, count, concurrency = '16'] = process.argv.slice(2);
const kMaxTokens = 400;

const listed = spawnSync(samples, ['list'], { maxBuffer: 1 << 28 }).stdout.toString().trim().split('\n').map((line) => JSON.parse(line));
const forms = [...new Map(listed.filter(({ kind }) => ['schema', 'regex', 'choice'].includes(kind)).map(({ kind, spec }) => [`${kind} ${JSON.stringify(spec)}`, { kind, spec }])).values()];
const asked = ({ kind, spec }) => ({ [kind === 'schema' ? 'json' : kind]: spec });

await test(`${count} samples of ${forms.length} forms under the model`, async () => {
  const server = await serve(program);
  const tally = {};
  let next = 0;
  const worker = async () => {
    while (next < Number(count)) {
      const i = next++;
      const form = forms[i % forms.length];
      const response = await fetch(`${server.url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'nano', prompt: 'Answer: ', max_tokens: kMaxTokens, seed: i, temperature: 1, structured_outputs: asked(form) }),
      });
      const body = await response.json();
      let result = `status ${response.status}: ${body.error?.message}`;
      if (response.status === 200) {
        const { text, finish_reason } = body.choices[0];
        try {
          result = finish_reason === 'stop' ? verdict({ ...form, text }) : finish_reason;
        } catch (error) {
          result = `invalid: ${error.message}`;
        }
        if (result.startsWith('invalid')) console.log(`${result}\n  ${text.slice(0, 300)}\n  ${JSON.stringify(form.spec).slice(0, 600)}`);
      } else {
        console.log(`${result}\n  ${JSON.stringify(form.spec).slice(0, 300)}`);
      }
      const name = result.split(':')[0];
      tally[name] = (tally[name] ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: Number(concurrency) }, worker));
  await server.stop();
  console.log(JSON.stringify(tally));
  if (tally.invalid || Object.keys(tally).some((name) => name.startsWith('status')) || !tally.valid) throw new Error('see above');
});
await finish();
