// The frame around the pages: what server this is, whether it answers, and the key if it wants one.

import { useEffect } from 'preact/hooks';
import { apiKey, setKey } from './api/client';
import { history, server, type ServerState } from './api/server';
import { Chat } from './chat/chat';
import { Overview } from './overview/overview';
import { Requests } from './requests/requests';
import { TipLayer } from './ui/help';
import { KeyForm } from './ui/key_form';
import { route, type Route } from './ui/route';
import { setTheme, shownTheme, theme } from './ui/theme';
import { useStore } from './ui/store';

const kPages: [Route['page'], string, string][] = [
  ['overview', '#/', 'Overview'],
  ['requests', '#/requests', 'Requests'],
  ['chat', '#/chat', 'Chat'],
];

const kStatus: Record<ServerState['status'], string> = {
  connecting: 'connecting',
  live: 'live',
  unreachable: 'not reachable',
  key: 'key needed',
  refused: 'refused',
};

function Header({ page, state }: { page: Route['page']; state: ServerState }) {
  useStore(theme);
  const key = useStore(apiKey);
  const dark = shownTheme() === 'dark';
  return (
    <header class="top">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById('main')?.focus(); }}>
        To the content
      </a>
      <span class="brand">DeepInfer</span>
      <nav aria-label="Pages">
        {kPages.map(([name, href, title]) => (
          <a key={name} href={href} aria-current={name === page ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <div class="state">
      <span class="model" title="Model">{state.models[0]?.id ?? ''}</span>
      <span class={`status ${state.status}`} role="status">
        {kStatus[state.status]}
      </span>
      {state.version !== '' && <span class="version">{state.version} · {state.commit}</span>}
      {key !== '' && (
        <button type="button" onClick={() => setKey('')}>
          Forget key
        </button>
      )}
      <button type="button" aria-label={dark ? 'Use the light theme' : 'Use the dark theme'} onClick={() => setTheme(dark ? 'light' : 'dark')}>
        {dark ? 'Light' : 'Dark'}
      </button>
      </div>
    </header>
  );
}

function Notice({ state }: { state: ServerState }) {
  if (state.status === 'unreachable') {
    const since = history.latest === undefined ? '' : ' What is shown is from before.';
    return <p class="notice bad" role="alert">The server does not answer; trying again every second.{since}</p>;
  }
  if (state.status === 'refused') return <p class="notice bad" role="alert">The server refused: {state.message}</p>;
  return null;
}

export function App() {
  const { page } = useStore(route);
  const state = useStore(server);
  useEffect(() => {
    document.title = `${kPages.find(([name]) => name === page)![2]} · DeepInfer`;
  }, [page]);
  return (
    <>
      <Header page={page} state={state} />
      <Notice state={state} />
      {state.status === 'key' ? <KeyForm message={state.message} /> : page === 'chat' ? <Chat /> : page === 'requests' ? <Requests /> : <Overview />}
      <TipLayer />
    </>
  );
}
