import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { Span, Timeline } from '../src/api/debug';
import { ticks, timeStep } from '../src/charts/scale';
import { layLanes } from '../src/requests/lanes';
import { length, unexplained, untilFirst } from '../src/requests/phases';
import { bytes, count, kNone, percent, seconds, whole } from '../src/ui/format';

const plain = (text: string): string => text.replaceAll('\u202f', ' ');

test('figures are written one way', () => {
  assert.deepEqual([0, 0.126, 12.34, 999.6, 1234, 56_789, 1_250_000, 3e9].map((v) => plain(count(v))), ['0', '0.13', '12.3', '1 000', '1 234', '56.8 k', '1.25 M', '3 G']);
  assert.deepEqual([0, 2.5e-7, 8.5e-4, 0.0125, 1.234, 119, 200, 9000].map((v) => plain(seconds(v))), ['0 s', '250 ns', '850 µs', '12.5 ms', '1.23 s', '119 s', '3 min 20 s', '2 h 30 min']);
  assert.deepEqual([0, 0.00001, 0.001, 0.042, 0.37, 1].map((v) => plain(percent(v))), ['0 %', '< 0.01 %', '0.1 %', '4.2 %', '37 %', '100 %']);
  assert.deepEqual([512, 3_355_443, 2 ** 40].map((v) => plain(bytes(v))), ['512 B', '3.2 MiB', '1 TiB']);
  assert.equal(plain(whole(239_674)), '239 674');
  for (const format of [count, seconds, percent, bytes, whole]) assert.equal(format(undefined), kNone);
});

test('axes have round steps and reach the highest value', () => {
  assert.deepEqual(ticks(5.3, 3), [0, 2, 4, 6]);
  assert.deepEqual(ticks(0.045, 3), [0, 0.02, 0.04, 0.06]);
  assert.deepEqual(ticks(0, 3), [0, 1]);
  assert.deepEqual(ticks(NaN, 3), [0, 1]);
  for (let v = 1e-6; v < 1e9; v *= 1.37) {
    const t = ticks(v, 3);
    assert.ok(t[t.length - 1]! >= v * (1 - 1e-9) && t.length >= 2 && t.length <= 5, `${v}: ${t}`);
  }
  assert.equal(timeStep(300, 5), 60);
});

const timeline = JSON.parse(fs.readFileSync(path.join(process.env.FIXTURES!, 'timeline.json'), 'utf8')) as Timeline;

test('phases explain the time to first token', () => {
  const [finished, , waiting] = timeline.requests;
  assert.ok(Math.abs(unexplained(finished!)!) < 1e-6);
  assert.equal(untilFirst(finished!).length, finished!.phases.length - 1, 'all but the decode');
  assert.equal(unexplained(waiting!), null);
  assert.equal(length({ name: 'x', begin: 2, end: 1 }), 0);
});

test('no two spans of a lane overlap, and each is drawn once', () => {
  const lanes = layLanes(timeline.spans);
  assert.equal(lanes.reduce((sum, lane) => sum + lane.spans.length, 0), timeline.spans.length);
  for (const { spans } of lanes) {
    for (let i = 1; i < spans.length; ++i) assert.ok(spans[i]!.begin >= spans[i - 1]!.end - 1e-6, `${spans[i - 1]!.name}, ${spans[i]!.name}`);
  }
  assert.deepEqual([...new Set(lanes.map((lane) => lane.track))], ['request', 'engine', 'device', 'cache', 'network']);
  assert.equal(lanes.filter((lane) => lane.first).length, 5);
  const nested: Span[] = [[0, 10], [0, 5], [2, 3], [5, 7], [11, 12]].map(([begin, end]) => ({ name: 'n', category: 'c', track: 'new', begin: begin!, end: end! }));
  assert.deepEqual(layLanes(nested).map((lane) => lane.spans.length), [2, 2, 1]);
});
