// One turn of the conversation.

import { useState } from 'preact/hooks';
import { Term } from '../ui/help';
import { count, seconds, whole } from '../ui/format';
import type { ToolCall } from '../api/chat';
import { retry, sendResults, type AnswerTurn, type ToolTurn, type Turn } from './conversation';
import { Markdown } from './markdown_view';

/** Seconds; an answer that came in one piece has no rate. */
const kShortest = 0.02;

const kFinish: Record<string, string> = {
  stop: 'ended by itself',
  length: 'cut at the limit of tokens',
  tool_calls: 'called a tool',
  content_filter: 'was filtered',
};

function Thinking({ turn }: { turn: AnswerTurn }) {
  const { reasoning, content, tools } = turn.answer;
  if (reasoning === '') return null;
  const going = turn.state === 'streaming' && content === '' && tools.length === 0;
  const time = turn.first !== null && turn.thought !== null ? ` for ${seconds(turn.thought - turn.first)}` : '';
  return (
    <details class="thinking">
      <summary>{going ? 'Thinking…' : `Thought${time}`}</summary>
      <p>{reasoning}</p>
    </details>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still coming, or not JSON
  }
}

function Tools({ tools, open, model }: { tools: ToolCall[]; open: boolean; model: string }) {
  const [results, setResults] = useState<string[]>([]);
  if (tools.length === 0) return null;
  const give = (event: Event): void => {
    event.preventDefault();
    sendResults(tools.map((t, i): ToolTurn => ({ role: 'tool', call: t.id, name: t.name, text: results[i] ?? '' })), model);
  };
  return (
    <form class="tools" onSubmit={give}>
      {tools.map((tool, i) => (
        <section class="tool" key={i} aria-label={`Call of ${tool.name}`}>
          <h3>
            Tool call <code>{tool.name}</code>
          </h3>
          <pre tabIndex={0} aria-label="Arguments">
            <code>{pretty(tool.arguments)}</code>
          </pre>
          {open && (
            <label>
              Its result
              <textarea rows={2} value={results[i] ?? ''} onInput={(e) => { const text = e.currentTarget.value; setResults((was) => { const next = [...was]; next[i] = text; return next; }); }} />
            </label>
          )}
        </section>
      ))}
      {open && <button type="submit">Send the {tools.length === 1 ? 'result' : 'results'}</button>}
    </form>
  );
}

function Footer({ turn, last, model }: { turn: AnswerTurn; last: boolean; model: string }) {
  const { usage, finish, id, content } = turn.answer;
  const [copied, setCopied] = useState(false);
  if (turn.state === 'streaming') return null;
  const decode = turn.first !== null && turn.ended !== null ? turn.ended - turn.first : 0;
  const parts = [
    turn.state === 'stopped' ? 'stopped' : finish !== null ? (kFinish[finish] ?? finish) : '',
    turn.first !== null ? `first token after ${seconds(turn.first - turn.sent)}` : '',
    usage !== null ? `${whole(usage.completion_tokens)} tokens` : '',
    usage !== null && decode > kShortest && usage.completion_tokens > 1 ? `${count((usage.completion_tokens - 1) / decode)} tok/s` : '',
    usage !== null ? `prompt ${whole(usage.prompt_tokens)}${usage.cached_tokens > 0 ? `, ${whole(usage.cached_tokens)} cached` : ''}` : '',
  ].filter((part) => part !== '');
  return (
    <footer>
      <Term help="As this page saw it: times include the network and the browser. The timeline has the server’s own.">{parts.join(' · ')}</Term>
      {id !== '' && <a href={`#/requests?id=${encodeURIComponent(id)}`}>timeline</a>}
      {content !== '' && (
        <button type="button" class="plain" onClick={() => void navigator.clipboard?.writeText(content).then(() => setCopied(true))}>
          {copied ? 'copied' : 'copy'}
        </button>
      )}
      {last && (
        <button type="button" class="plain" onClick={() => retry(model)}>
          try again
        </button>
      )}
    </footer>
  );
}

export function Message({ turn, last, model }: { turn: Turn; last: boolean; model: string }) {
  if (turn.role === 'user') {
    return (
      <article class="turn user" aria-label="You">
        <p>{turn.text}</p>
      </article>
    );
  }
  if (turn.role === 'tool') {
    return (
      <article class="turn result" aria-label={`Result of ${turn.name}`}>
        <h3>
          Result of <code>{turn.name}</code>
        </h3>
        <p>{turn.text === '' ? '(empty)' : turn.text}</p>
      </article>
    );
  }
  const waiting = turn.state === 'streaming' && turn.first === null;
  return (
    <article class="turn answer" aria-label="Answer" aria-busy={turn.state === 'streaming'}>
      <Thinking turn={turn} />
      {waiting && <p class="waiting">Waiting for the first token…</p>}
      {turn.answer.content !== '' && <Markdown text={turn.answer.content} />}
      <Tools tools={turn.answer.tools} open={last && turn.state === 'done'} model={model} />
      {turn.error !== '' && <p class="notice bad" role="alert">{turn.error}</p>}
      <Footer turn={turn} last={last} model={model} />
    </article>
  );
}
