import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseInline, parseMarkdown, safeHref, type Inline } from '../src/chat/markdown';

const text = (nodes: Inline[]): string => nodes.map((n) => ('text' in n ? n.text : 'children' in n ? text(n.children) : '\n')).join('');

test('blocks', () => {
  const tree = parseMarkdown('# Title\n\nOne\ntwo\n\n- a\n- b\n  - c\n\n3. x\n4. y\n\n> quoted\n\n```js\nlet x;\n\n- no list\n```\n\n| a | b |\n|---|--:|\n| 1 | `2` |\n\n---');
  assert.deepEqual(tree.map((block) => block.kind), ['heading', 'paragraph', 'list', 'list', 'quote', 'code', 'table', 'rule']);
  const [, , bullets, numbers, , code, table] = tree;
  assert.ok(bullets?.kind === 'list' && !bullets.ordered && bullets.items.length === 2 && bullets.items[1]![1]?.kind === 'list');
  assert.ok(numbers?.kind === 'list' && numbers.ordered && numbers.start === 3);
  assert.deepEqual(code, { kind: 'code', language: 'js', text: 'let x;\n\n- no list' });
  assert.ok(table?.kind === 'table' && table.head.length === 2 && table.rows[0]![1]![0]!.kind === 'code');
});

test('code that is still coming is code', () => {
  assert.deepEqual(parseMarkdown('```py\nprint(1)'), [{ kind: 'code', language: 'py', text: 'print(1)' }]);
});

test('inline', () => {
  const kinds = (source: string): string[] => parseInline(source).map((n) => n.kind);
  assert.deepEqual(kinds('a **b *c* d** `e*f*` ~~g~~'), ['text', 'strong', 'text', 'code', 'text', 'strike']);
  assert.deepEqual(kinds('snake_case_name 2*3*4 a * b * c'), ['text', 'emphasis', 'text']);
  assert.equal(text(parseInline('\\*not\\* `a`` b')), '*not* `a`` b');
  assert.deepEqual(parseInline('see https://example.com/a?b=c.')[1], { kind: 'link', href: 'https://example.com/a?b=c', children: [{ kind: 'text', text: 'https://example.com/a?b=c' }] });
});

test('no address but those of pages and mail leads anywhere', () => {
  for (const href of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\nscript:alert(1)', 'data:text/html,x', 'vbscript:x', 'file:///etc/passwd', '//example.com', '/relative', 'blob:x'])
    assert.equal(safeHref(href), undefined, href);
  assert.equal(safeHref('https://example.com/'), 'https://example.com/');
  assert.equal(parseInline('[x](javascript:alert(1))').some((n) => n.kind === 'link'), false);
});

test('no text takes long or is lost', () => {
  for (const piece of ['*', '_', '[', '`', '~', '**a', '[a](', '<', '![', '> ', '- ', '\\', '| ', '*a_b`', '1. ', '\n> - ']) {
    const source = piece.repeat(20_000);
    const tree = parseMarkdown(source); // seconds, if it were quadratic: the runner's limit would end it
    assert.ok(tree.length > 0, piece);
  }
  assert.equal(text(parseInline('a<b>*c&amp;')), 'a<b>*c&amp;');
});
