// What the overview shows, derived from scrapes. A figure whose metric is not reported is undefined, never zero.

import { mean, quantile, readHistogram, type Histogram, type Quantile } from '../metrics/histogram';
import { increase, observed, rate, ratio, type History, type Moment } from '../metrics/history';
import { seconds } from '../ui/format';

/** Rates are means over this many seconds, distributions and shares over the others: in a chart, and in a headline. */
export const kRateWindow = 5;
export const kChartWindow = 15;
export const kHeadWindow = 60;

export const kLatencies = {
  ttft: 'vllm:time_to_first_token_seconds',
  itl: 'vllm:inter_token_latency_seconds',
  e2e: 'vllm:e2e_request_latency_seconds',
} as const;
export type Latency = keyof typeof kLatencies;
export const kQuantiles = { p50: 0.5, p95: 0.95, p99: 0.99 } as const;

export interface Point {
  time: number;
  generated?: number;
  computed?: number;
  cached?: number;
  running?: number;
  waiting?: number;
  busy?: number;
  idle?: number;
  hit?: number;
  acceptance?: number;
  latency: Record<Latency, Partial<Record<keyof typeof kQuantiles, number>>>;
}

/** Of what a step needs: the device, and waits of the device for the host. Shares of the time that passed. */
export function deviceShares(from: Moment, to: Moment): { busy?: number; idle?: number } {
  const [busy, idle] = [rate(from, to, 'deepinfer:step_seconds_total'), rate(from, to, 'deepinfer:device_idle_seconds_total')];
  // A step is counted when it ends, whole, so that a window can have a little more than its own length.
  return { busy: busy === undefined ? undefined : Math.min(busy, 1), idle: idle === undefined ? undefined : Math.min(idle, 1) };
}

function latency(from: Moment, to: Moment, which: Latency): Point['latency'][Latency] {
  const h = observed(from, to, kLatencies[which]);
  if (h === undefined) return {};
  return Object.fromEntries(Object.entries(kQuantiles).map(([name, q]) => [name, quantile(h, q)?.value]));
}

const points = new WeakMap<Moment, Point>();

/** The figures of one moment; undefined for the first, which nothing can be compared with. */
export function pointAt(history: History, index: number): Point | undefined {
  const to = history.at(index);
  if (to === undefined) return undefined;
  const done = points.get(to);
  if (done !== undefined) return done;
  const near = history.before(index, kRateWindow);
  const far = history.before(index, kChartWindow);
  if (near === undefined || far === undefined) return undefined;
  const point: Point = {
    time: to.time,
    generated: rate(near, to, 'vllm:generation_tokens_total'),
    computed: rate(near, to, 'vllm:prompt_tokens_by_source_total', { source: 'local_compute' }),
    cached: rate(near, to, 'vllm:prompt_tokens_cached_total'),
    running: to.scrape.value('vllm:num_requests_running'),
    waiting: to.scrape.value('vllm:num_requests_waiting'),
    ...deviceShares(near, to),
    hit: ratio(far, to, 'vllm:prefix_cache_hits_total', 'vllm:prefix_cache_queries_total'),
    acceptance: ratio(far, to, 'vllm:spec_decode_num_accepted_tokens_total', 'vllm:spec_decode_num_draft_tokens_total'),
    latency: { ttft: latency(far, to, 'ttft'), itl: latency(far, to, 'itl'), e2e: latency(far, to, 'e2e') },
  };
  points.set(to, point);
  return point;
}

/** The points of the last `span` seconds, thinned to at most one a slice of time, about 300 in all. */
export function pointsOf(history: History, span: number): Point[] {
  const now = history.latest?.time ?? 0;
  const slice = Math.max(1, Math.ceil(span / 300));
  const out: Point[] = [];
  for (let i = 0; i < history.length; ++i) {
    const time = history.at(i)!.time;
    if (time < now - span) continue;
    const next = history.at(i + 1);
    // The last of each slice, so that which ones are drawn does not change from second to second.
    if (next !== undefined && Math.floor(next.time / slice) === Math.floor(time / slice)) continue;
    const point = pointAt(history, i);
    if (point !== undefined) out.push(point);
  }
  return out;
}

/** A quantile as a text; the bound of the first bucket is said to be no more than that. */
export function quantileText(q: Quantile | undefined): string | undefined {
  if (q === undefined) return undefined;
  return `${q.where === 'below' ? '< ' : q.where === 'above' ? '> ' : ''}${seconds(q.value)}`;
}

/** For axes and legends of a chart of quantiles, which has numbers alone. */
export function latencyFormat(history: History, which: Latency): (value: number | undefined) => string {
  const scrape = history.latest?.scrape;
  const bounds = scrape === undefined ? undefined : readHistogram(scrape, kLatencies[which])?.bounds;
  return (value) => (value !== undefined && value > 0 && value === bounds?.[0] ? `< ${seconds(value)}` : seconds(value));
}

export interface Headline {
  from: Moment;
  to: Moment;
  near: Moment;
}

/** The moments that headlines compare: now, a little before, and a minute before. */
export function headline(history: History): Headline | undefined {
  const index = history.length - 1;
  const [to, near, from] = [history.latest, history.before(index, kRateWindow), history.before(index, kHeadWindow)];
  return to === undefined || near === undefined || from === undefined ? undefined : { from, to, near };
}

export function latencyIn(head: Headline, which: Latency): Histogram | undefined {
  return observed(head.from, head.to, kLatencies[which]);
}

export interface RequestTime {
  name: string;
  help: string;
  color: number;
  value: number;
}

/** Where the mean request of the window spent its time; undefined if none ended, or it isn't reported. */
export function requestTime(head: Headline): RequestTime[] | undefined {
  const part = (name: string): number | undefined => {
    const h = observed(head.from, head.to, `vllm:${name}_seconds`);
    return h === undefined ? undefined : mean(h);
  };
  const [queue, prefill, decode, all] = [part('request_queue_time'), part('request_prefill_time'), part('request_decode_time'), part('e2e_request_latency')];
  if (queue === undefined || prefill === undefined || decode === undefined || all === undefined) return undefined;
  return [
    { name: 'Queue', color: 3, value: queue, help: 'From submission to the engine to the first step: waiting for a place.' },
    { name: 'Prefill', color: 1, value: prefill, help: 'From the first step to the first token: running the prompt, or what the cache did not have of it.' },
    { name: 'Decode', color: 2, value: decode, help: 'From the first token to the last.' },
    { name: 'Other', color: 6, value: Math.max(all - queue - prefill - decode, 0), help: 'The rest of the time from arrival to end: parsing, tokenising, preparing structured output, sending.' },
  ];
}

/** Acceptance by position in the draft, in the window; empty if there were no drafts. */
export function acceptanceByPosition(head: Headline): { position: number; share: number }[] {
  const drafts = increase(head.from, head.to, 'vllm:spec_decode_num_drafts_total');
  if (drafts === undefined || drafts <= 0) return [];
  const name = 'vllm:spec_decode_num_accepted_tokens_per_pos_total';
  return [...head.to.scrape.by(name, 'position').keys()]
    .map(Number)
    .filter((position) => Number.isInteger(position))
    .sort((a, b) => a - b)
    .map((position) => ({ position, share: (increase(head.from, head.to, name, { position: String(position) }) ?? 0) / drafts }));
}
