import assert from 'node:assert/strict';
import { test } from 'node:test';
import { histogramDelta, mean, quantile, readHistogram, type Histogram } from '../src/metrics/histogram';
import { History, increase, observed, rate, ratio, type Moment } from '../src/metrics/history';
import { parseMetrics } from '../src/metrics/text';

test('samples, labels, escapes and values', () => {
  const scrape = parseMetrics(
    ['# HELP a Text.', '# TYPE a counter', 'a{model_name="x",source="one"} 3', 'a{model_name="x",source="two"} 4 1700000000', 'b 1.5e-3', 'c{l="q\\"u\\\\o\\nte, }"} +Inf', ''].join('\n'),
  );
  assert.equal(scrape.value('a'), 7);
  assert.equal(scrape.value('a', { source: 'two' }), 4);
  assert.deepEqual([...scrape.by('a', 'source')], [['one', 3], ['two', 4]]);
  assert.equal(scrape.value('b'), 0.0015);
  assert.equal(scrape.samples('c')[0]?.labels.l, 'q"u\\o\nte, }');
  assert.equal(scrape.value('c'), Infinity);
});

test('what is not reported is undefined, not zero', () => {
  const scrape = parseMetrics('a{k="1"} 0\n');
  assert.equal(scrape.value('a'), 0);
  assert.equal(scrape.value('b'), undefined);
  assert.equal(scrape.value('a', { k: '2' }), undefined);
});

test('lines that are no samples are left out, the others stay', () => {
  const scrape = parseMetrics('a{k="1" 3\n{} 4\nb{k=1} 2\nc NaN\nd\ne{k="open\n1f 2\ng{__proto__="x"} 5\nh 6');
  assert.deepEqual(['a', 'b', 'c', 'd', 'e', 'f'].map((name) => scrape.value(name)), Array(6).fill(undefined));
  assert.equal(scrape.value('g', { ['__proto__']: 'x' }), 5);
  assert.equal(({} as Record<string, unknown>).x, undefined);
  assert.equal(scrape.value('h'), 6);
});

const kBounds = [0.25, 0.5, 1, Infinity];
const histogram = (...counts: number[]): Histogram => ({ bounds: kBounds, counts, count: counts.reduce((a, b) => a + b, 0), sum: 1 });

test('quantiles lie on straight lines inside buckets', () => {
  assert.deepEqual(quantile(histogram(0, 10, 0, 0), 0.5), { value: 0.375, where: 'inside' });
  assert.deepEqual(quantile(histogram(5, 0, 5, 0), 0.75), { value: 0.75, where: 'inside' });
  // Exactly at the end of a bucket: its bound, not something of the next one.
  assert.deepEqual(quantile(histogram(0, 5, 5, 0), 0.5), { value: 0.5, where: 'inside' });
  assert.equal(quantile(histogram(0, 0, 0, 0), 0.5), undefined);
});

test('the ends of a histogram are said to be ends', () => {
  assert.deepEqual(quantile(histogram(9, 1, 0, 0), 0.5), { value: 0.25, where: 'below' });
  assert.deepEqual(quantile(histogram(1, 0, 0, 9), 0.5), { value: 1, where: 'above' });
});

const scrapeOf = (counts: number[], sum: number) => {
  let below = 0;
  const lines = counts.map((count, i) => `t_bucket{m="x",le="${kBounds[i] === Infinity ? '+Inf' : kBounds[i]}"} ${(below += count)}`);
  return parseMetrics([...lines, `t_sum{m="x"} ${sum}`, `t_count{m="x"} ${below}`, ''].join('\n'));
};

test('a histogram is what came between two scrapes', () => {
  const [earlier, later] = [readHistogram(scrapeOf([5, 1, 0, 0], 0.2), 't')!, readHistogram(scrapeOf([5, 3, 2, 0], 1.4), 't')!];
  const delta = histogramDelta(earlier, later)!;
  assert.deepEqual(delta.counts, [0, 2, 2, 0]);
  assert.equal(delta.count, 4);
  assert.ok(Math.abs(mean(delta)! - 0.3) < 1e-12);
  assert.equal(histogramDelta(later, earlier), undefined, 'a server that began anew');
  assert.equal(readHistogram(scrapeOf([], 0), 'other'), undefined);
});

const moment = (time: number, text: string): Moment => ({ time, scrape: parseMetrics(text) });

test('rates and ratios', () => {
  const [from, to] = [moment(10, 'a 5\nb 10'), moment(14, 'a 13\nb 26\nc{k="new"} 4')];
  assert.equal(rate(from, to, 'a'), 2);
  assert.equal(ratio(from, to, 'a', 'b'), 0.5);
  assert.equal(ratio(from, from, 'a', 'b'), undefined, 'nothing of nothing');
  assert.equal(rate(from, to, 'd'), undefined);
  assert.equal(increase(from, to, 'c', { k: 'new' }), 4, 'a label that came between');
  assert.equal(observed(from, to, 'h'), undefined);
});

test('a history keeps its time, finds moments and notices a restart', () => {
  const history = new History(10);
  for (let t = 0; t <= 20; ++t) history.add(t, parseMetrics(`deepinfer:steps_total ${t}\n`));
  assert.equal(history.length, 11);
  assert.equal(history.before(history.length - 1, 5)?.time, 15);
  assert.equal(history.before(history.length - 1, 0.5)?.time, 19, 'there is always one to compare with');
  assert.equal(history.before(history.length - 1, 1000)?.time, 10);
  assert.equal(history.before(0, 5), undefined);
  history.add(21, parseMetrics('deepinfer:steps_total 0\n'));
  assert.equal(history.restarts, 1);
  assert.equal(history.length, 1);
});
