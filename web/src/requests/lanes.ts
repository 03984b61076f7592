// Spans that overlap, laid out in rows: a track is as many lanes high as it has spans at once.

import type { Span } from '../api/debug';

export interface Lane {
  track: string;
  /** The first lane of its track has its name. */
  first: boolean;
  spans: Span[];
}

const kOrder = ['request', 'engine', 'device', 'ops', 'cache', 'network'];
/** More lanes than these of one track are of no use to the eye; what does not fit is drawn over the last one. */
const kMostLanes = 6;

/** Shorter overlaps are rounding of the clock, not one thing inside another. */
const kTouch = 1e-7;

export function layLanes(spans: readonly Span[]): Lane[] {
  const tracks = new Map<string, Span[]>();
  for (const span of spans) {
    const list = tracks.get(span.track);
    if (list === undefined) tracks.set(span.track, [span]);
    else list.push(span);
  }
  const place = (track: string): number => (kOrder.indexOf(track) + kOrder.length + 1) % (kOrder.length + 1);
  const names = [...tracks.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  return names.flatMap((track) => {
    const lanes: Lane[] = [];
    const ends: number[] = [];
    // Longer ones first where they begin together, so that parts lie below their whole.
    const sorted = [...tracks.get(track)!].sort((a, b) => a.begin - b.begin || b.end - a.end);
    for (const span of sorted) {
      let at = ends.findIndex((end) => end <= span.begin + kTouch);
      if (at < 0) at = Math.min(ends.length, kMostLanes - 1);
      (lanes[at] ??= { track, first: at === 0, spans: [] }).spans.push(span);
      ends[at] = Math.max(ends[at] ?? -Infinity, span.end);
    }
    return lanes;
  });
}
