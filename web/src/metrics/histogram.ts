// Histograms of Prometheus: what was observed between two scrapes, and quantiles of that.

import type { Scrape } from './text';

export interface Histogram {
  /** Upper bounds, ascending; the last one is Infinity. */
  bounds: number[];
  /** Observations per bucket, not cumulative. */
  counts: number[];
  count: number;
  sum: number;
}

export interface Quantile {
  value: number;
  /** In the first bucket (`value` is its bound: no more than that is known), inside one, or above the last finite bound. */
  where: 'below' | 'inside' | 'above';
}

/** A histogram of a scrape, summed over its labels; undefined if it isn't reported. */
export function readHistogram(scrape: Scrape, name: string): Histogram | undefined {
  const cumulative = new Map<number, number>();
  for (const { labels, value } of scrape.samples(`${name}_bucket`)) {
    const text = labels.le;
    if (text === undefined) continue;
    const bound = text === '+Inf' ? Infinity : Number(text);
    if (!Number.isNaN(bound)) cumulative.set(bound, (cumulative.get(bound) ?? 0) + value);
  }
  if (cumulative.size === 0) return undefined;
  const bounds = [...cumulative.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound, i) => (cumulative.get(bound) ?? 0) - (i > 0 ? (cumulative.get(bounds[i - 1]!) ?? 0) : 0));
  const count = scrape.value(`${name}_count`) ?? counts.reduce((a, b) => a + b, 0);
  return { bounds, counts, count, sum: scrape.value(`${name}_sum`) ?? 0 };
}

/** What came between; undefined if the buckets differ or the later one has less: the server began anew. */
export function histogramDelta(earlier: Histogram, later: Histogram): Histogram | undefined {
  if (earlier.bounds.length !== later.bounds.length || later.bounds.some((bound, i) => bound !== earlier.bounds[i])) return undefined;
  const counts = later.counts.map((count, i) => count - (earlier.counts[i] ?? 0));
  const count = later.count - earlier.count;
  if (count < 0 || counts.some((c) => c < 0)) return undefined;
  return { bounds: later.bounds, counts, count, sum: later.sum - earlier.sum };
}

/**
 * The q-quantile, 0 < q <= 1, with straight lines inside the buckets, as PromQL's histogram_quantile does; undefined
 * without observations. In the first bucket nothing says how low values are: its bound is given, and said to be one.
 */
export function quantile(h: Histogram, q: number): Quantile | undefined {
  const total = h.counts.reduce((a, b) => a + b, 0);
  if (total <= 0) return undefined;
  const rank = q * total;
  let below = 0;
  for (let i = 0; i < h.counts.length; ++i) {
    const inside = h.counts[i]!;
    const bound = h.bounds[i]!;
    if (inside === 0 || below + inside < rank) {
      below += inside;
      continue;
    }
    if (i === 0) return { value: bound, where: bound === Infinity ? 'above' : 'below' };
    const lower = h.bounds[i - 1]!;
    if (bound === Infinity) return { value: lower, where: 'above' };
    return { value: lower + ((bound - lower) * (rank - below)) / inside, where: 'inside' };
  }
  return undefined;
}

export function mean(h: Histogram): number | undefined {
  return h.count > 0 ? h.sum / h.count : undefined;
}
