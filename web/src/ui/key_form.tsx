import { useEffect, useRef, useState } from 'preact/hooks';
import { apiKey, setKey } from '../api/client';

/** Asks for the API key; it stays in this tab. */
export function KeyForm({ message }: { message: string }) {
  const [text, setText] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const tried = apiKey.value !== '';
  useEffect(() => field.current?.focus(), []);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (text.trim() !== '') setKey(text.trim());
  };
  return (
    <main id="main" class="key" tabIndex={-1}>
      <form class="panel" onSubmit={submit}>
        <h1>This server needs an API key</h1>
        <p>Figures and chats are for those who have one. The key is kept in this tab until you close it, and sent to this server alone.</p>
        <label for="key">API key</label>
        <input id="key" ref={field} type="password" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} aria-invalid={tried} aria-describedby={tried ? 'key-refused' : undefined} />
        {tried && <p id="key-refused" class="notice bad" role="alert">The server refused this key: {message}</p>}
        <button type="submit" class="primary" disabled={text.trim() === ''}>Use this key</button>
      </form>
    </main>
  );
}
