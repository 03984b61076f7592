// Other people's verdicts on texts of constrained generation: ajv for JSON Schema, this engine's own RegExp and parser.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

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
/// Errors of schemas that no validator takes.
export const unjudged = () => [...validators.values()].filter((v) => v instanceof Error);

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

/// 'valid', 'invalid: ...', 'doubled keys' or 'unjudged' for {kind, spec, text}; throws where the text is not even JSON.
export function verdict(sample) {
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
