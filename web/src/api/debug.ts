// /debug/timeline and /debug/experts (docs/reference/timeline.md).

import { call, ServerError } from './client';

/** Seconds on the recorder's clock. */
export interface Phase {
  name: string;
  begin: number;
  end: number;
}

export interface TimelineRequest {
  request: number;
  id: string;
  x_request_id: string;
  state: 'waiting' | 'running' | 'finished';
  finish: string | null;
  arrival: number;
  first_token: number | null;
  end: number | null;
  ttft: number | null;
  prompt_tokens: number;
  cached_tokens: number;
  replayed_tokens: number;
  completion_tokens: number;
  preemptions: number;
  phases: Phase[];
}

export interface Span {
  name: string;
  category: string;
  track: string;
  request?: number;
  step?: number;
  begin: number;
  end: number;
  args?: Record<string, unknown>;
}

export interface Timeline {
  enabled: boolean;
  start_unix: number;
  now: number;
  dropped: number;
  truncated: boolean;
  requests: TimelineRequest[];
  spans: Span[];
}

export interface ExpertLayer {
  layer: number;
  draft: boolean;
  tokens: number;
  imbalance: number;
  counts: number[];
}

export interface Experts {
  experts: number;
  layers: ExpertLayer[];
}

/** What a debugging route says, or why it says nothing. */
export type Debug<T> = { value: T } | { missing: string; absent?: boolean };

async function debug<T>(path: string, what: string): Promise<Debug<T>> {
  try {
    return { value: (await (await call(path)).json()) as T };
  } catch (error) {
    if (!(error instanceof ServerError)) return { missing: String(error) };
    if (error.status === 404 && error.message.startsWith('there is nothing at'))
      return { missing: `This server does not offer ${what} here. It does with --debug-endpoints on.`, absent: true };
    return { missing: error.message };
  }
}

export const latestRequests = (count: number): Promise<Debug<Timeline>> => debug(`debug/timeline?last=${count}`, 'request timelines');
export const requestTimeline = (id: string): Promise<Debug<Timeline>> =>
  debug(`debug/timeline?request=${encodeURIComponent(id)}`, 'request timelines');
export const expertCounts = (): Promise<Debug<Experts>> => debug('debug/experts', 'expert counts');
