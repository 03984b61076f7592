// Bundles the tests, which are TypeScript, and hands them to node's own runner: node test/run.mjs
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = path.dirname(fileURLToPath(import.meta.url));
const out = fs.mkdtempSync(path.join(os.tmpdir(), 'deepinfer-web-'));
try {
  const entryPoints = fs.readdirSync(here).filter((name) => name.endsWith('_test.ts')).map((name) => path.join(here, name));
  await build({ entryPoints, outdir: out, bundle: true, platform: 'node', format: 'esm', outExtension: { '.js': '.mjs' }, jsx: 'automatic', jsxImportSource: 'preact', logLevel: 'warning' });
  const files = fs.readdirSync(out).map((name) => path.join(out, name));
  process.exitCode = spawnSync(process.execPath, ['--test', ...files], { stdio: 'inherit', env: { ...process.env, FIXTURES: path.join(here, 'fixtures') } }).status ?? 1;
} finally {
  fs.rmSync(out, { recursive: true });
}
