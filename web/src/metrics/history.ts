// Scrapes over time. The server keeps no history: what the page draws is what it saw since it was opened.

import { histogramDelta, readHistogram, type Histogram } from './histogram';
import type { Scrape } from './text';

export interface Moment {
  /** Seconds, on the clock of the page. */
  time: number;
  scrape: Scrape;
}

/** A counter that only falls when the process starts anew. */
const kProcessCounters = ['process_cpu_seconds_total', 'deepinfer:connections_total', 'deepinfer:steps_total'];

export class History {
  private moments: Moment[] = [];
  /** How often the server was seen to have started anew. */
  restarts = 0;

  constructor(private readonly keepSeconds: number) {}

  add(time: number, scrape: Scrape): void {
    const last = this.latest;
    if (last !== undefined && kProcessCounters.some((name) => (scrape.value(name) ?? 0) < (last.scrape.value(name) ?? 0))) {
      this.moments = [];
      this.restarts += 1;
    }
    this.moments.push({ time, scrape });
    const first = this.moments.findIndex((m) => m.time >= time - this.keepSeconds);
    if (first > 0) this.moments.splice(0, first);
  }

  get length(): number {
    return this.moments.length;
  }
  get latest(): Moment | undefined {
    return this.moments[this.moments.length - 1];
  }
  at(index: number): Moment | undefined {
    return this.moments[index];
  }

  /** The oldest moment at most `seconds` before that of `index`, or the one before it; undefined if it is the first. */
  before(index: number, seconds: number): Moment | undefined {
    const now = this.moments[index];
    if (now === undefined || index === 0) return undefined;
    let at = index - 1;
    while (at > 0 && this.moments[at - 1]!.time >= now.time - seconds) at -= 1;
    return this.moments[at];
  }
}

/** How much a counter grew; undefined if it isn't reported. */
export function increase(from: Moment, to: Moment, name: string, labels?: Record<string, string>): number | undefined {
  const later = to.scrape.value(name, labels);
  if (later === undefined) return undefined;
  // A counter with labels may not have existed before it first counted.
  return Math.max(later - (from.scrape.value(name, labels) ?? 0), 0);
}

/** Its growth a second. */
export function rate(from: Moment, to: Moment, name: string, labels?: Record<string, string>): number | undefined {
  const grown = increase(from, to, name, labels);
  return grown === undefined || to.time <= from.time ? undefined : grown / (to.time - from.time);
}

/** The growth of one counter over that of another; undefined if that is nothing. */
export function ratio(from: Moment, to: Moment, part: string, whole: string): number | undefined {
  const a = increase(from, to, part);
  const b = increase(from, to, whole);
  return a === undefined || b === undefined || b <= 0 ? undefined : a / b;
}

export function observed(from: Moment, to: Moment, name: string): Histogram | undefined {
  const earlier = readHistogram(from.scrape, name);
  const later = readHistogram(to.scrape, name);
  if (later === undefined) return undefined;
  return earlier === undefined ? later : histogramDelta(earlier, later);
}
