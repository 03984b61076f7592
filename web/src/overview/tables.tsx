// The parts of the overview that are bars and figures.

import { StackedBar, type Part } from '../charts/stacked_bar';
import { increase, rate } from '../metrics/history';
import type { Scrape } from '../metrics/text';
import { Term } from '../ui/help';
import { Empty, Facts, Panel } from '../ui/panel';
import { bytes, count, percent, perSecond, seconds, whole } from '../ui/format';
import { acceptanceByPosition, requestTime, type Headline } from './figures';

const text = <T,>(value: T | undefined, format: (value: T) => string): string | undefined => (value === undefined ? undefined : format(value));

export function RequestTimePanel({ head }: { head: Headline }) {
  const parts = requestTime(head);
  return (
    <Panel title="Where a request’s time goes" help="The mean request of those that ended in the last minute. For a single request, look under Requests.">
      {parts === undefined ? <Empty>No request ended in the last minute.</Empty> : <StackedBar label="Mean request" parts={parts} format={seconds} />}
    </Panel>
  );
}

/** Pages by who holds them; undefined if the pages aren't reported. */
function pageParts(scrape: Scrape): Part[] | undefined {
  const [all, free, cached] = ['deepinfer:kv_pages', 'deepinfer:kv_pages_free', 'deepinfer:kv_pages_cached'].map((name) => scrape.value(name));
  if (all === undefined || free === undefined || cached === undefined) return undefined;
  return [
    { name: 'In use', color: 1, value: Math.max(all - free - cached, 0), help: 'Pages that running requests hold.' },
    { name: 'Cached', color: 2, value: cached, help: 'Pages that only the prefix cache holds. They are taken back when a request needs room.' },
    { name: 'Free', color: 6, value: free, help: 'Pages that nobody holds.' },
  ];
}

const kClassHelp: Record<string, string> = {
  chat: 'Cached pages of chats: kept 10 minutes after their last use.',
  agent: 'Cached pages of agents: kept an hour after their last use.',
  pinned: 'Cached pages that are kept until they are unpinned.',
};

const kTierHelp: Record<string, string> = {
  device: 'Pages of the KV cache that hold something: in use or cached.',
  host: 'Pages kept in the host’s memory beside the cache.',
  local: 'Pages in the database on this machine’s disk, which outlives the server.',
  shared: 'Pages in the folder that several servers share.',
};

/** Pages by one label; undefined if that is not reported. */
function splitBy(scrape: Scrape, label: string): [string, number][] | undefined {
  const split = scrape.by(`deepinfer:kv_pages_by_${label}`, label);
  return split.size > 0 ? [...split] : undefined;
}

export function PagesPanel({ head }: { head: Headline }) {
  const scrape = head.to.scrape;
  const parts = pageParts(scrape);
  const lines = (label: string, title: string, help: string) => {
    const split = splitBy(scrape, label);
    if (split === undefined) return [{ label: title, help, value: undefined }];
    return split.map(([name, pages]) => ({ label: `${title}: ${name}`, help: kClassHelp[name] ?? kTierHelp[name] ?? help, value: whole(pages) }));
  };
  const evicted = increase(head.from, head.to, 'deepinfer:kv_pages_evicted_total');
  const expired = increase(head.from, head.to, 'deepinfer:kv_pages_expired_total');
  return (
    <Panel title="KV pages" help="Pages of the KV cache by who holds them. A page holds a fixed number of positions of all KV sources.">
      {parts === undefined ? <Empty>not reported</Empty> : <StackedBar label="KV pages" parts={parts} format={whole} />}
      <Facts
        facts={[
          ...lines('class', 'By class', 'Cached pages by how long they are to be kept: chat, agent, pinned.'),
          ...lines('tier', 'By tier', 'Pages by where they lie: device, host memory, disk, other machines.'),
          { label: 'Evicted, expired', help: 'In the last minute: cached pages that made room before their time was over, and those whose time was over.', value: evicted === undefined || expired === undefined ? undefined : `${whole(evicted)}, ${whole(expired)}` },
        ]}
      />
    </Panel>
  );
}

export function CachePanel({ head }: { head: Headline }) {
  const grown = (name: string) => increase(head.from, head.to, name);
  const [hits, misses] = [grown('deepinfer:window_snapshot_hits_total'), grown('deepinfer:window_snapshot_misses_total')];
  const [ran, all] = [grown('deepinfer:row_layers_total'), grown('deepinfer:full_row_layers_total')];
  const saved = ran === undefined || all === undefined || all === 0 ? undefined : Math.max(1 - ran / all, 0);
  const [windows, windowBytes] = [head.to.scrape.value('deepinfer:window_snapshots'), head.to.scrape.value('deepinfer:window_snapshot_bytes')];
  const positions = acceptanceByPosition(head);
  return (
    <Panel title="Work saved" help="What the prefix cache, bounded replay and speculation saved in the last minute.">
      <Facts
        facts={[
          { label: 'Row-layers not run', help: 'Rows times layers that cache and replay made needless, of what would have run without them.', value: all === undefined ? undefined : percent(saved) },
          { label: 'Tokens replayed', help: 'Cached prompt tokens that were run again, to rebuild the windows of local attention.', value: text(grown('deepinfer:replayed_tokens_total'), whole) },
          { label: 'Windows kept, rebuilt', help: 'Prefix hits whose window was kept at the end of the prefix, and those whose window was rebuilt by replay.', value: hits === undefined || misses === undefined ? undefined : `${whole(hits)}, ${whole(misses)}` },
          { label: 'Windows in memory', help: 'Windows kept at the ends of cached prefixes, and their memory.', value: windows === undefined || windowBytes === undefined ? undefined : `${whole(windows)} (${bytes(windowBytes)})` },
          { label: 'Draft tokens', help: 'Draft tokens verified.', value: text(grown('vllm:spec_decode_num_draft_tokens_total'), whole) },
        ]}
      />
      {positions.length > 0 && (
        <table class="positions">
          <caption>
            <Term help="Of the drafts verified in the last minute, the part whose token at this position was accepted. A position counts only if all before it were accepted.">Accepted by position</Term>
          </caption>
          <tbody>
            {positions.map(({ position, share }) => (
              <tr key={position}>
                <th scope="row">{position + 1}</th>
                <td>
                  <svg width="100%" height="8" aria-hidden="true">
                    <rect class="track" width="100%" height="8" />
                    <rect class="s4" width={`${Math.min(share, 1) * 100}%`} height="8" />
                  </svg>
                </td>
                <td class="share">{percent(share)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

export function EnginePanel({ head }: { head: Headline }) {
  const { near, from, to } = head;
  const steps = rate(near, to, 'deepinfer:steps_total');
  const perStep = (name: string): string | undefined => {
    const [time, number] = [increase(from, to, name), increase(from, to, 'deepinfer:steps_total')];
    return time === undefined || number === undefined ? undefined : number === 0 ? '–' : seconds(time / number);
  };
  return (
    <Panel title="Engine" help="Steps of the engine: each runs the model once over rows of all running requests.">
      <Facts
        facts={[
          { label: 'Steps', help: 'Steps a second, mean of the last 5 s.', value: text(steps, perSecond) },
          { label: 'Device time a step', help: 'Mean of the last minute.', value: perStep('deepinfer:step_seconds_total') },
          { label: 'Planning a step', help: 'Time of the host to decide what a step runs, mean of the last minute. It overlaps the step before.', value: perStep('deepinfer:host_plan_seconds_total') },
          { label: 'Publishing a step', help: 'Time of the host to make outputs of what a step drew, mean of the last minute.', value: perStep('deepinfer:host_publish_seconds_total') },
          { label: 'Waits for masks', help: 'Time in the last minute in which draws waited for the token masks of structured outputs.', value: text(increase(from, to, 'deepinfer:token_mask_wait_seconds_total'), seconds) },
          { label: 'Preemptions', help: 'Requests that gave their pages up for others, in the last minute. Many: the KV cache is too small for the load.', value: text(increase(from, to, 'vllm:num_preemptions_total'), whole) },
        ]}
      />
    </Panel>
  );
}

const kEndings: Record<string, string> = {
  stop: 'Choices that ended by themselves, or at a stop text.',
  length: 'Choices that reached their limit of tokens.',
  abort: 'Choices that were cancelled, mostly since the client left.',
  deadline: 'Choices that ran out of time.',
  error: 'Choices that failed.',
};

export function EndingsPanel({ head }: { head: Headline }) {
  const { from, to } = head;
  const name = 'vllm:request_success_total';
  const reasons = [...to.scrape.by(name, 'finished_reason').keys()];
  return (
    <Panel title="How requests end" help="Choices of the last minute by how they ended, and requests that were not taken. In brackets: since the server’s start.">
      <Facts
        facts={[
          ...(reasons.length === 0 ? [{ label: 'Ended', help: 'Choices by how they ended.', value: undefined }] : []),
          ...reasons.map((reason) => ({
            label: reason,
            help: kEndings[reason] ?? 'Choices that ended this way.',
            value: `${whole(increase(from, to, name, { finished_reason: reason }))} (${count(to.scrape.value(name, { finished_reason: reason }))})`,
          })),
          { label: 'refused', help: 'Requests that found the queue full.', value: text(to.scrape.value('deepinfer:requests_refused_total'), (all) => `${whole(increase(from, to, 'deepinfer:requests_refused_total'))} (${count(all)})`) },
          { label: 'clients gone', help: 'Clients that left before their answer was complete.', value: text(to.scrape.value('deepinfer:client_disconnects_total'), (all) => `${whole(increase(from, to, 'deepinfer:client_disconnects_total'))} (${count(all)})`) },
        ]}
      />
    </Panel>
  );
}

export function ProcessPanel({ head }: { head: Headline }) {
  const { near, to } = head;
  return (
    <Panel title="Process" help="The server’s process and its connections.">
      <Facts
        facts={[
          { label: 'CPU', help: 'Cores that the process keeps busy, mean of the last 5 s.', value: text(rate(near, to, 'process_cpu_seconds_total'), (v) => `${count(v)} cores`) },
          { label: 'Memory', help: 'Resident memory. Mapped weights count as far as they have been read.', value: text(to.scrape.value('process_resident_memory_bytes'), bytes) },
          { label: 'Connections', help: 'Open connections. This page has one or two of them.', value: text(to.scrape.value('deepinfer:connections'), whole) },
          { label: 'Sent', help: 'Bytes of replies a second, mean of the last 5 s. This page’s own figures are among them.', value: text(rate(near, to, 'deepinfer:sent_bytes_total'), (v) => `${bytes(v)}/s`) },
          { label: 'Files', help: 'Open file descriptors.', value: text(to.scrape.value('process_open_fds'), whole) },
        ]}
      />
    </Panel>
  );
}
