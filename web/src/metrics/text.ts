// The text format of Prometheus (version 0.0.4), as far as servers write it.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

/** What one scrape said, by the name of the sample (a histogram's are NAME_bucket, NAME_sum and NAME_count). */
export class Scrape {
  private readonly byName = new Map<string, Sample[]>();

  constructor(samples: Iterable<Sample>) {
    for (const sample of samples) {
      const list = this.byName.get(sample.name);
      if (list === undefined) this.byName.set(sample.name, [sample]);
      else list.push(sample);
    }
  }

  samples(name: string): readonly Sample[] {
    return this.byName.get(name) ?? [];
  }

  /** The sum over the samples that carry these labels; undefined if there is none: not reported is not zero. */
  value(name: string, labels: Record<string, string> = {}): number | undefined {
    const wanted = Object.entries(labels);
    let sum: number | undefined;
    for (const sample of this.samples(name)) {
      if (wanted.every(([key, value]) => sample.labels[key] === value)) sum = (sum ?? 0) + sample.value;
    }
    return sum;
  }

  /** The values by one label: `kv_pages{class="chat"}` and so on, summed over the other labels. */
  by(name: string, label: string): Map<string, number> {
    const out = new Map<string, number>();
    for (const sample of this.samples(name)) {
      const key = sample.labels[label];
      if (key !== undefined) out.set(key, (out.get(key) ?? 0) + sample.value);
    }
    return out;
  }
}

function parseValue(text: string): number {
  if (text === '+Inf' || text === 'Inf') return Infinity;
  if (text === '-Inf') return -Infinity;
  if (text === 'NaN') return NaN;
  return text === '' ? NaN : Number(text);
}

/** `key="value",...` up to the closing brace at the end; undefined if it is not that. */
function parseLabels(line: string, from: number): { labels: Record<string, string>; end: number } | undefined {
  // Without a prototype, a label called __proto__ is a label.
  const labels: Record<string, string> = Object.create(null) as Record<string, string>;
  let at = from;
  for (;;) {
    while (line[at] === ' ' || line[at] === ',') at += 1;
    if (line[at] === '}') return { labels, end: at + 1 };
    const equals = line.indexOf('=', at);
    if (equals < 0 || line[equals + 1] !== '"') return undefined;
    const key = line.slice(at, equals).trim();
    let value = '';
    at = equals + 2;
    while (at < line.length && line[at] !== '"') {
      if (line[at] === '\\') {
        at += 1;
        value += line[at] === 'n' ? '\n' : (line[at] ?? '');
      } else {
        value += line[at];
      }
      at += 1;
    }
    if (line[at] !== '"') return undefined;
    at += 1;
    labels[key] = value;
  }
}

function parseLine(line: string): Sample | undefined {
  const name = /^[a-zA-Z_:][a-zA-Z0-9_:]*/.exec(line)?.[0];
  if (name === undefined) return undefined;
  let labels: Record<string, string> = {};
  let at = name.length;
  if (line[at] === '{') {
    const parsed = parseLabels(line, at + 1);
    if (parsed === undefined) return undefined;
    labels = parsed.labels;
    at = parsed.end;
  }
  const value = parseValue(line.slice(at).trim().split(/\s+/)[0] ?? '');
  return Number.isNaN(value) ? undefined : { name, labels, value };
}

/** Lines that are no samples (comments, values that are not numbers) are left out. */
export function parseMetrics(text: string): Scrape {
  const samples: Sample[] = [];
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const sample = parseLine(line);
    if (sample !== undefined) samples.push(sample);
  }
  return new Scrape(samples);
}
