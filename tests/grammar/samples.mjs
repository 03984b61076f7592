// Judges samples of constrained generation by other people's validators: ajv for JSON Schema, this engine's own RegExp and parser.
//   node samples.mjs PATH/TO/grammar_samples COUNT [SEED]
// Every text that ended must be valid; one that was cut by the token limit is counted, and may be at most one in a hundred.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath } from 'node:url';

const [program, count, seed = '1'] = process.argv.slice(2);
const here = path.dirname(fileURLToPath(import.meta.url));
const modules = process.env.DEEPINFER_NPM ?? path.join(here, '..', 'e2e', 'node_modules');
if (!fs.existsSync(path.join(modules, 'ajv'))) {
  console.log(`skipped: ajv is not in ${modules} (npm install in tests/e2e)`);
  process.exit(77);
}
const load = createRequire(path.join(modules, 'here.js'));
const addFormats = load('ajv-formats');
const drafts = { '2020': load('ajv/dist/2020'), '2019': load('ajv/dist/2019'), '7': load('ajv'), '4': load('ajv-draft-04') };
// Those that the grammar enforces; others are annotations (docs/guides/structured-output.md).
const formats = ['date-time', 'date', 'time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid', 'uri', 'uri-reference', 'json-pointer'];

const options = { strict: false, strictNumbers: false, allErrors: false, validateSchema: false, logger: false, multipleOfPrecision: 6 };
function compile(schema) {
  const id = String(schema?.$schema ?? '');
  const named = id.includes('2019') ? '2019' : /draft-0[34]/.test(id) || typeof schema?.id === 'string' ? '4' : /draft-0[67]/.test(id) ? '7' : '2020';
  let first = null;
  // Many schemas are not of the draft that they name.
  for (const draft of [named, '4', '7', '2020']) {
    try {
      return compileAs(draft, id, schema);
    } catch (error) {
      first ??= error;
    }
  }
  throw first;
}

function compileAs(draft, id, schema) {
  const Ajv = drafts[draft].default ?? drafts[draft];
  const ajv = new Ajv(options);
  (addFormats.default ?? addFormats)(ajv, formats);
  // RFC 3986 lets the path be empty behind the scheme, and RFC 5321 a domain be one label; ajv-formats does not.
  const also = (format, pattern) => {
    const known = ajv.formats[format];
    const judge = typeof known === 'function' ? known : known.validate ?? ((text) => known.test(text));
    ajv.addFormat(format, (text) => pattern.test(text) || judge(text));
  };
  also('uri', /^[a-z][a-z0-9+.-]*:([?#].*)?$/i);
  also('email', /^[a-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$/i);
  const { $schema, ...rest } = schema;
  return ajv.compile(id ? rest : schema);
}

/// Whether an object of the text has a key twice: JSON.parse keeps one of them, so counts of members are then not what was written.
function doubled(text) {
  const stack = [];
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]/gs)) {
    const top = stack.at(-1);
    if (token === '{') stack.push({ keys: new Set(), key: true });
    else if (token === '[') stack.push(null);
    else if (token === '}' || token === ']') stack.pop();
    else if (token === ',' && top) top.key = true;
    else if (token === ':' && top) top.key = false;
    else if (token[0] === '"' && top?.key) {
      const key = JSON.parse(token);
      if (top.keys.has(key)) return true;
      top.keys.add(key);
    }
  }
  return false;
}

const validators = new Map();
function schemaVerdict(schema, text) {
  const key = JSON.stringify(schema);
  if (!validators.has(key)) {
    try {
      validators.set(key, compile(schema));
    } catch (error) {
      validators.set(key, error);
    }
  }
  const validate = validators.get(key);
  if (validate instanceof Error) return 'unjudged';
  const value = JSON.parse(text);
  if (validate(value)) return 'valid';
  const limits = validate.errors.every((e) => /Properties$/.test(e.keyword));
  if (limits && doubled(text)) return 'doubled keys';
  return `invalid: ${JSON.stringify(validate.errors)}`;
}

function verdict(sample) {
  const { kind, spec, text } = sample;
  switch (kind) {
    case 'schema':
      return schemaVerdict(spec, text);
    case 'regex':
      return new RegExp(`^(?:${spec})$`, 'u').test(text) ? 'valid' : 'invalid: no match';
    case 'choice':
      return spec.includes(text) ? 'valid' : 'invalid: not listed';
    case 'json':
      JSON.parse(text);
      return 'valid';
    case 'sum':
      return /^[-+*()0-9]+$/.test(text) && Number.isFinite(Function(`return ${text.replaceAll('(', '(0+')}`)()) ? 'valid' : 'invalid: no sum';
  }
  return `invalid: kind ${kind}`;
}

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
const unjudged = [...validators.values()].filter((v) => v instanceof Error);
for (const error of unjudged.slice(0, 5)) console.log(`not judged: ${error.message.slice(0, 200)}`);
const enough = total === Number(count) && (tally.valid ?? 0) >= 0.95 * total;
process.exitCode = code === 0 && enough && !tally.invalid && (tally.length ?? 0) <= total / 100 ? 0 : 1;
