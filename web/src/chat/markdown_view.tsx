import type { ComponentChildren, JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { parseMarkdown, type Block, type Inline } from './markdown';

function inline(nodes: Inline[]): ComponentChildren {
  return nodes.map((node, i) => {
    switch (node.kind) {
      case 'text':
        return node.text;
      case 'code':
        return <code key={i}>{node.text}</code>;
      case 'break':
        return <br key={i} />;
      case 'strong':
        return <strong key={i}>{inline(node.children)}</strong>;
      case 'emphasis':
        return <em key={i}>{inline(node.children)}</em>;
      case 'strike':
        return <s key={i}>{inline(node.children)}</s>;
      case 'link':
        return (
          <a key={i} href={node.href} target="_blank" rel="noopener noreferrer nofollow">
            {inline(node.children)}
          </a>
        );
    }
  });
}

function list(block: Extract<Block, { kind: 'list' }>, key: number): JSX.Element {
  const items = block.items.map((item, i) => {
    const [first, ...rest] = item;
    // An item of one paragraph needs no space around it.
    return <li key={i}>{first?.kind === 'paragraph' ? [inline(first.children), blocks(rest)] : blocks(item)}</li>;
  });
  return block.ordered ? (
    <ol key={key} start={block.start}>
      {items}
    </ol>
  ) : (
    <ul key={key}>{items}</ul>
  );
}

function blocks(nodes: Block[]): ComponentChildren {
  return nodes.map((block, i) => {
    switch (block.kind) {
      case 'paragraph':
        return <p key={i}>{inline(block.children)}</p>;
      case 'heading': {
        // The page has its own first two levels.
        const Tag = `h${Math.min(block.level + 2, 6)}` as 'h3';
        return <Tag key={i}>{inline(block.children)}</Tag>;
      }
      case 'code':
        return (
          <pre key={i} tabIndex={0} aria-label={block.language === '' ? 'Code' : `Code, ${block.language}`}>
            <code>{block.text}</code>
          </pre>
        );
      case 'quote':
        return <blockquote key={i}>{blocks(block.children)}</blockquote>;
      case 'list':
        return list(block, i);
      case 'rule':
        return <hr key={i} />;
      case 'table':
        return (
          <div class="table" key={i} tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead>
                <tr>{block.head.map((cell, c) => <th key={c}>{inline(cell)}</th>)}</tr>
              </thead>
              <tbody>
                {block.rows.map((row, r) => (
                  <tr key={r}>{row.map((cell, c) => <td key={c}>{inline(cell)}</td>)}</tr>
                ))}
              </tbody>
            </table>
          </div>
        );
    }
  });
}

/** Text of a model, as Markdown. */
export function Markdown({ text }: { text: string }) {
  const tree = useMemo(() => parseMarkdown(text), [text]);
  return <div class="markdown">{blocks(tree)}</div>;
}
