// The part of Markdown that models write, as a tree. Nothing here makes HTML: what is not understood stays text.

export type Inline =
  | { kind: 'text'; text: string }
  | { kind: 'code'; text: string }
  | { kind: 'break' }
  | { kind: 'strong' | 'emphasis' | 'strike'; children: Inline[] }
  | { kind: 'link'; href: string; children: Inline[] };

export type Block =
  | { kind: 'paragraph'; children: Inline[] }
  | { kind: 'heading'; level: number; children: Inline[] }
  | { kind: 'code'; language: string; text: string }
  | { kind: 'quote'; children: Block[] }
  | { kind: 'list'; ordered: boolean; start: number; items: Block[][] }
  | { kind: 'table'; head: Inline[][]; rows: Inline[][][] }
  | { kind: 'rule' };

const kDeepest = 8; // quotes in quotes, emphasis in emphasis
const kMostFailures = 500; // of one paragraph

/** An address that a click may lead to; anything else (javascript:, data:, ...) is undefined. */
export function safeHref(text: string): string | undefined {
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

const kDelimiters: [RegExp, 'strong' | 'emphasis' | 'strike'][] = [
  [/^\*\*(?=\S)([^]*?\S)\*\*(?!\*)/, 'strong'],
  [/^__(?=\S)([^]*?\S)__(?!\w)/, 'strong'],
  [/^~~(?=\S)([^]*?\S)~~/, 'strike'],
  [/^\*(?=[^\s*])([^]*?[^\s*])\*(?!\*)/, 'emphasis'],
  [/^_(?=[^\s_])([^]*?[^\s_])_(?!\w)/, 'emphasis'],
];

interface Found {
  length: number;
  node: Inline;
}

function special(text: string, at: number, depth: number): Found | undefined {
  const rest = text.slice(at, at + 4000); // no delimiter reaches further, and no search is longer
  const c = rest[0]!;
  if (c === '\\' && /^\\[\\`*_{}[\]()#+\-.!|~<>]/.test(rest)) return { length: 2, node: { kind: 'text', text: rest[1]! } };
  if (c === '\n') return { length: 1, node: { kind: 'break' } };
  if (c === '`') {
    const found = /^(`+)([^]*?[^`])\1(?!`)/.exec(rest);
    return found === null ? undefined : { length: found[0].length, node: { kind: 'code', text: found[2]!.replace(/^ (.*) $/s, '$1') } };
  }
  if (depth >= kDeepest) return undefined;
  if (c === '[' || c === '!') {
    const found = /^!?\[([^\]\n]*)\]\((\S+?)(?:\s+"[^"\n]*")?\)/.exec(rest);
    const href = found === null ? undefined : safeHref(found[2]!);
    return href === undefined ? undefined : { length: found![0].length, node: { kind: 'link', href, children: parseInline(found![1]! || href, depth + 1) } };
  }
  if (c === '<' || c === 'h') {
    const found = /^<?(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_])>?/.exec(rest);
    const href = found === null ? undefined : safeHref(found[1]!);
    return href === undefined ? undefined : { length: found![0].length, node: { kind: 'link', href, children: [{ kind: 'text', text: found![1]! }] } };
  }
  if (c === '_' && /\w/.test(text[at - 1] ?? '')) return undefined; // snake_case
  for (const [pattern, kind] of kDelimiters) {
    const found = pattern.exec(rest);
    if (found !== null) return { length: found[0].length, node: { kind, children: parseInline(found[1]!, depth + 1) } };
  }
  return undefined;
}

export function parseInline(text: string, depth = 0): Inline[] {
  const out: Inline[] = [];
  let plain = '';
  let failures = 0; // a text of nothing but delimiters must not take long
  const flush = (): void => {
    if (plain !== '') out.push({ kind: 'text', text: plain });
    plain = '';
  };
  let at = 0;
  while (at < text.length) {
    const found = failures < kMostFailures && /[\\`*_~[!<h\n]/.test(text[at]!) ? special(text, at, depth) : undefined;
    if (found === undefined) {
      if (text[at] !== 'h' && /[`*_~[<]/.test(text[at]!)) failures += 1;
      plain += text[at];
      at += 1;
    } else {
      flush();
      out.push(found.node);
      at += found.length;
    }
  }
  flush();
  return out;
}

const kItem = /^( {0,3})([-*+]|(\d{1,9})[.)])( +|$)/;
const kRule = /^ {0,3}([-*_])( *\1){2,} *$/;

const cells = (line: string): string[] =>
  line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));

/** Whether a paragraph ends before this line. */
const begins = (line: string): boolean => line.trim() === '' || /^ {0,3}(#{1,6} |>|```|~~~)/.test(line) || kItem.test(line) || kRule.test(line);

interface Taken {
  block: Block;
  next: number;
}

function takeFence(lines: string[], at: number): Taken | undefined {
  const open = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/.exec(lines[at]!);
  if (open === null) return undefined;
  let end = at + 1;
  // One that is not closed yet goes on to the end: the answer is still coming.
  while (end < lines.length && !(lines[end]!.trim().startsWith(open[1]!) && lines[end]!.trim().replaceAll(open[1]![0]!, '') === '')) end += 1;
  return { block: { kind: 'code', language: open[2]!, text: lines.slice(at + 1, end).join('\n') }, next: end + 1 };
}

function takeList(lines: string[], at: number, depth: number): Taken | undefined {
  const first = kItem.exec(lines[at]!);
  if (first === null) return undefined;
  const ordered = first[3] !== undefined;
  const items: string[][] = [];
  let next = at;
  while (next < lines.length) {
    const line = lines[next]!;
    const item = kItem.exec(line);
    const indented = /^( {2,}|\t)/.test(line);
    if (item !== null && (item[3] !== undefined) === ordered && item[1]!.length <= first[1]!.length + 1) items.push([line.slice(item[0].length)]);
    else if (indented) items[items.length - 1]!.push(line.replace(/^(\t| {2,4})/, ''));
    else if (line.trim() === '' && (/^( {2,}|\t)/.test(lines[next + 1] ?? '') || kItem.test(lines[next + 1] ?? ''))) items[items.length - 1]!.push('');
    else break;
    next += 1;
  }
  return { block: { kind: 'list', ordered, start: Number(first[3] ?? 1), items: items.map((item) => parseMarkdown(item.join('\n'), depth + 1)) }, next };
}

function takeTable(lines: string[], at: number): Taken | undefined {
  const rule = lines[at + 1];
  if (!lines[at]!.includes('|') || rule === undefined || !/^ *\|?( *:?-+:? *\|)+ *(:?-+:? *)?$/.test(rule)) return undefined;
  let next = at + 2;
  while (next < lines.length && lines[next]!.includes('|')) next += 1;
  const row = (line: string): Inline[][] => cells(line).map((cell) => parseInline(cell));
  return { block: { kind: 'table', head: row(lines[at]!), rows: lines.slice(at + 2, next).map(row) }, next };
}

function takeQuote(lines: string[], at: number, depth: number): Taken | undefined {
  let next = at;
  while (next < lines.length && /^ {0,3}>/.test(lines[next]!)) next += 1;
  if (next === at) return undefined;
  return { block: { kind: 'quote', children: parseMarkdown(lines.slice(at, next).map((l) => l.replace(/^ {0,3}> ?/, '')).join('\n'), depth + 1) }, next };
}

function takeParagraph(lines: string[], at: number): Taken {
  let next = at + 1;
  while (next < lines.length && !begins(lines[next]!)) next += 1;
  return { block: { kind: 'paragraph', children: parseInline(lines.slice(at, next).map((l) => l.trim()).join('\n')) }, next };
}

export function parseMarkdown(text: string, depth = 0): Block[] {
  if (depth >= kDeepest) return [{ kind: 'paragraph', children: [{ kind: 'text', text }] }];
  const lines = text.replaceAll('\r\n', '\n').split('\n');
  const out: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at]!;
    if (line.trim() === '') {
      at += 1;
      continue;
    }
    const heading = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)? *$/.exec(line);
    let taken: Taken | undefined;
    if (heading !== null) taken = { block: { kind: 'heading', level: heading[1]!.length, children: parseInline(heading[2]!) }, next: at + 1 };
    else if (kRule.test(line)) taken = { block: { kind: 'rule' }, next: at + 1 };
    else taken = takeFence(lines, at) ?? takeQuote(lines, at, depth) ?? takeList(lines, at, depth) ?? takeTable(lines, at) ?? takeParagraph(lines, at);
    out.push(taken.block);
    at = taken.next;
  }
  return out;
}
