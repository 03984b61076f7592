// Starts the built program on a free port, and stops it by its process id.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { createRequire } from 'node:module';

export const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
export const nano = path.join(root, 'models', 'nano');
const modules = process.env.DEEPINFER_NPM ?? path.join(root, 'tests', 'e2e', 'node_modules');

/// The default export of a package; exit code 77 (skipped) where it is not installed.
export function client(name) {
  if (!fs.existsSync(path.join(modules, name))) {
    console.log(`skipped: ${name} is not in ${modules} (npm install in tests/e2e)`);
    process.exit(77);
  }
  const loaded = createRequire(path.join(modules, 'here.js'))(name);
  return loaded.default ?? loaded;
}

const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));

export async function serve(program, ...args) {
  const child = spawn(program, ['serve', nano, ...(args.includes('--port') ? [] : ['--port', '0']), '--log-level', 'warning', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  let out = '';
  let err = '';
  child.stderr.on('data', (data) => (err += data));
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve({ code, signal })));
  const url = await new Promise((resolve, reject) => {
    child.stdout.on('data', (data) => {
      out += data;
      const found = /listening on (\S+)/.exec(out);
      if (found) resolve(found[1]);
    });
    ended.then(() => reject(new Error(`the server ended: ${err}`)));
  });
  return {
    url,
    admin: /^admin\s+(\S+)/m.exec(out)?.[1],
    out: () => out,
    err: () => err,
    async stop(signal = 'SIGTERM') {
      child.kill(signal);
      const how = await ended;
      running.delete(child);
      return how;
    },
  };
}

/// A POST of JSON: {status, body}.
export async function post(url, path, body, headers = {}) {
  const response = await fetch(url + path, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

/// The sum over the samples of a metric whose labels contain `label`.
export async function metric(url, name, label = '', headers = {}) {
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  const lines = text.split('\n').filter((l) => (l.startsWith(`${name}{`) || l.startsWith(`${name} `)) && l.includes(label));
  if (lines.length === 0) throw new Error(`there is no ${name}`);
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}

export async function eventually(what, condition) {
  for (let i = 0; i < 1200; ++i) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`never came: ${what}`);
}

// ---- a test runner of three lines, so that node's own runner is not needed ------------------------------------------------
let failed = 0;
let passed = 0;
export async function test(name, body) {
  const start = Date.now();
  try {
    await body();
    passed += 1;
    console.log(`ok   ${name} (${Date.now() - start} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack ?? error}`);
  }
}
export function finish() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}

/// The text of a scripted answer of the fake engine.
export const reply = (text) => `[[reply]]${text}[[/reply]]`;
/// What the model writes to call tools: [name, {parameter: value}] each.
export const dsml = (...calls) => {
  const parameter = ([key, value]) =>
    `<｜DSML｜ parameter name="${key}" string="${typeof value === 'string'}">${typeof value === 'string' ? value : JSON.stringify(value)}</｜DSML｜ parameter>\n`;
  const invoke = ([name, args]) => `<｜DSML｜ invoke name="${name}">\n${Object.entries(args).map(parameter).join('')}</｜DSML｜ invoke>\n`;
  return `\n\n<｜DSML｜ calls>\n${calls.map(invoke).join('')}</｜DSML｜ calls>`;
};

/// Warnings of a client library are failures.
export function watchWarnings() {
  const seen = [];
  for (const level of ['warn', 'error']) {
    const original = console[level];
    console[level] = (...args) => {
      seen.push(args.map(String).join(' '));
      original(...args);
    };
  }
  return seen;
}
