// The latest requests, and where the time of one went.

import { useCallback, useEffect, useState } from 'preact/hooks';
import { latestRequests, requestTimeline, type Debug, type Timeline, type TimelineRequest } from '../api/debug';
import { server } from '../api/server';
import { Term } from '../ui/help';
import { Empty } from '../ui/panel';
import { ago, seconds, whole } from '../ui/format';
import { route } from '../ui/route';
import { useStore } from '../ui/store';
import { Detail } from './detail';
import { length, phaseInfo, untilFirst } from './phases';

const kShown = 50;
const kEvery = 2000;

/** What the server names a request by: the client's id, or its number. */
const idOf = (request: TimelineRequest): string => request.id || String(request.request);

function PhaseBar({ request, longest }: { request: TimelineRequest; longest: number }) {
  const phases = untilFirst(request);
  const total = phases.reduce((sum, p) => sum + length(p), 0);
  const label = phases.map((p) => `${phaseInfo(p.name).title} ${seconds(length(p))}`).join(', ');
  let before = 0;
  return (
    <svg class="bar" width="100%" height="10" role="img" aria-label={label === '' ? 'no phase has ended' : label}>
      {longest > 0 &&
        total > 0 &&
        phases.map((phase, i) => {
          const left = before;
          before += length(phase);
          return <rect key={i} class={`s${phaseInfo(phase.name).color}`} x={`${(left / longest) * 100}%`} width={`${(length(phase) / longest) * 100}%`} height="10" />;
        })}
    </svg>
  );
}

const kColumns: [string, string, string][] = [
  ['id', 'Request', 'The id that the client got; choose one to see its timeline.'],
  ['state', 'State', 'waiting, running, or how it ended.'],
  ['arrival', 'Arrived', 'When the request was complete.'],
  ['num', 'Prompt', 'Prompt tokens, and how many of them came from the prefix cache.'],
  ['num', 'Answer', 'Tokens generated.'],
  ['num', 'First token', 'Time to first token.'],
  ['num', 'Total', 'From arrival to end.'],
  ['phases', 'Up to the first token', 'Phases of the time to first token, all rows on one scale. Choose a request for their names and lengths.'],
];

function List({ timeline, chosen }: { timeline: Timeline; chosen: string }) {
  const longest = Math.max(...timeline.requests.map((r) => untilFirst(r).reduce((sum, p) => sum + length(p), 0)), 0);
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Latest requests">
      <table class="requests">
        <thead>
          <tr>
            {kColumns.map(([name, title, help]) => (
              <th scope="col" class={name} key={title}>
                <Term help={help}>{title}</Term>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {timeline.requests.map((r) => (
            <tr key={r.request} class={idOf(r) === chosen ? 'chosen' : ''}>
              <th scope="row">
                <a href={`#/requests?id=${encodeURIComponent(idOf(r))}`} aria-current={idOf(r) === chosen ? 'true' : undefined}>
                  {idOf(r)}
                </a>
              </th>
              <td>{r.finish ?? r.state}</td>
              <td>{ago(Math.max(timeline.now - r.arrival, 0))}</td>
              <td class="num">
                {whole(r.prompt_tokens)}
                {r.cached_tokens > 0 && <small> ({whole(r.cached_tokens)} cached)</small>}
              </td>
              <td class="num">{whole(r.completion_tokens)}</td>
              <td class="num">{seconds(r.ttft ?? undefined)}</td>
              <td class="num">{seconds(r.end === null ? undefined : r.end - r.arrival)}</td>
              <td class="phases">
                <PhaseBar request={r} longest={longest} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Asks again every two seconds while `live`. */
function usePolled<T>(ask: () => Promise<Debug<T>>, live: (value: T) => boolean): Debug<T> | null {
  const [reply, setReply] = useState<Debug<T> | null>(null);
  useEffect(() => {
    let on = true;
    let timer = 0;
    const run = async (): Promise<void> => {
      if (!document.hidden) {
        const got = await ask();
        if (!on) return;
        setReply(got);
        if ('value' in got ? !live(got.value) : got.absent === true) return;
      }
      timer = window.setTimeout(() => void run(), kEvery);
    };
    setReply(null);
    void run();
    return () => {
      on = false;
      clearTimeout(timer);
    };
  }, [ask]);
  return reply;
}

function One({ id }: { id: string }) {
  const reply = usePolled(useCallback(() => requestTimeline(id), [id]), (t) => t.requests.some((r) => r.state !== 'finished'));
  if (reply === null) return <Empty>Asking…</Empty>;
  if ('missing' in reply) return <p class="notice bad" role="alert">{reply.missing}</p>;
  if (!reply.value.enabled) return null;
  return <Detail timeline={reply.value} />;
}

function Find() {
  const [text, setText] = useState('');
  const submit = (event: Event): void => {
    event.preventDefault();
    if (text.trim() !== '') location.hash = `#/requests?id=${encodeURIComponent(text.trim())}`;
  };
  return (
    <form class="find" role="search" onSubmit={submit}>
      <label for="find" class="unseen">Id of a request</label>
      <input id="find" type="search" placeholder="id, x-request-id or number" value={text} onInput={(e) => setText(e.currentTarget.value)} />
      <button type="submit">Show</button>
    </form>
  );
}

export function Requests() {
  const { parameters } = useStore(route);
  const { status } = useStore(server);
  const id = parameters.get('id') ?? '';
  const list = usePolled(useCallback(() => latestRequests(kShown), []), () => true);
  return (
    <main id="main" class="requests" tabIndex={-1}>
      <div class="bar-above">
        <h1>Requests</h1>
        <Find />
      </div>
      {id !== '' && <One id={id} />}
      {list === null && <Empty>Asking…</Empty>}
      {list !== null && 'missing' in list && status === 'live' && <Empty>{list.missing}</Empty>}
      {list !== null && 'value' in list && !list.value.enabled && <Empty>This server records no timelines: it was started with --timeline-memory 0.</Empty>}
      {list !== null && 'value' in list && list.value.enabled && (list.value.requests.length === 0 ? <Empty>No request yet.</Empty> : <List timeline={list.value} chosen={id} />)}
    </main>
  );
}
