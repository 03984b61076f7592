// The chat page.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { server } from '../api/server';
import { Store, useStore } from '../ui/store';
import { clear, send, stop, turns } from './conversation';
import { Message } from './message';
import { parseTools, settings } from './settings';
import { SettingsForm } from './settings_form';

/** What is being written; it outlives a look at another page. */
const draft = new Store('');

/** Keeps the end in sight while an answer grows, unless somebody has scrolled up. */
function useFollow(content: unknown) {
  const log = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current && log.current !== null) log.current.scrollTop = log.current.scrollHeight;
  }, [content]);
  const onScroll = (): void => {
    const box = log.current!;
    follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };
  return { log, onScroll };
}

function Composer({ model, busy }: { model: string; busy: boolean }) {
  const text = useStore(draft);
  const field = useRef<HTMLTextAreaElement>(null);
  const [problem, setProblem] = useState('');
  useLayoutEffect(() => {
    const box = field.current!;
    box.style.height = 'auto';
    box.style.height = `${Math.min(box.scrollHeight + 2, 240)}px`;
  }, [text]);
  useEffect(() => field.current?.focus(), []);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (busy || text.trim() === '') return;
    try {
      parseTools(settings.value.tools);
    } catch (error) {
      setProblem((error as Error).message);
      return;
    }
    setProblem('');
    draft.set('');
    send(text, model);
  };
  const keys = (event: KeyboardEvent): void => {
    // While an input method composes, Enter is its own.
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
  };
  return (
    <form class="composer" onSubmit={submit}>
      {problem !== '' && <p class="notice bad" role="alert">{problem}</p>}
      <label class="unseen" for="message">Message</label>
      <textarea id="message" ref={field} rows={1} placeholder="Write a message. Enter sends, Shift+Enter begins a line." value={text} onInput={(e) => draft.set(e.currentTarget.value)} onKeyDown={keys} />
      {busy ? (
        <button type="button" class="stop" onClick={stop}>Stop</button>
      ) : (
        <button type="submit" class="primary" disabled={text.trim() === '' || model === ''}>Send</button>
      )}
    </form>
  );
}

export function Chat() {
  const { models } = useStore(server);
  const { model: wanted } = useStore(settings);
  const list = useStore(turns);
  const { log, onScroll } = useFollow(list);
  const [open, setOpen] = useState(false);
  const last = list[list.length - 1];
  const busy = last?.role === 'assistant' && last.state === 'streaming';
  const model = models.find((m) => m.id === wanted)?.id ?? models[0]?.id ?? '';
  return (
    <main id="main" class={open ? 'chat open' : 'chat'} tabIndex={-1}>
      <section class="conversation" aria-label="Conversation">
        <div class="bar-above">
          <h1>Chat</h1>
          <button type="button" class="drawer" aria-expanded={open} aria-controls="chat-settings" onClick={() => setOpen(!open)}>Settings</button>
          <button type="button" disabled={list.length === 0} onClick={clear}>New chat</button>
        </div>
        <div class="log" ref={log} onScroll={onScroll} role="log" aria-label="Messages" tabIndex={0}>
          {list.length === 0 && <p class="empty">Nothing said yet. The conversation stays in this tab and is gone when it is closed.</p>}
          {list.map((turn, i) => (
            <Message key={i} turn={turn} last={i + 1 === list.length} model={model} />
          ))}
        </div>
        <Composer model={model} busy={busy} />
      </section>
      <aside id="chat-settings" aria-label="Settings">
        <h2>Settings</h2>
        <SettingsForm models={models} />
      </aside>
    </main>
  );
}
