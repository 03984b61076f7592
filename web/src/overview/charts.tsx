// The charts of the overview.

import { LineChart, type Series } from '../charts/line_chart';
import type { History } from '../metrics/history';
import { Panel } from '../ui/panel';
import { count, percent } from '../ui/format';
import { kQuantiles, latencyFormat, type Latency, type Point } from './figures';

export interface ChartData {
  history: History;
  points: Point[];
  span: number;
  now: number;
}

function chart(data: ChartData, label: string, empty: string, format: (v: number | undefined) => string, series: Series[], least = 0) {
  return <LineChart label={label} times={data.points.map((p) => p.time)} span={data.span} now={data.now} series={series} format={format} empty={empty} least={least} />;
}

function line(data: ChartData, name: string, color: number, of: (point: Point) => number | undefined, step = false): Series {
  return { name, color, values: data.points.map(of), step };
}

export function ThroughputChart({ data }: { data: ChartData }) {
  return (
    <Panel title="Throughput, tokens per second" help="Output: generated. Prompt run: computed in prefill. Prompt cached: found in the prefix cache. Tokens a second, mean of the 5 s before each point. Prompts count when their request begins, so they come in peaks.">
      {chart(data, 'Throughput', 'not reported', count, [
        line(data, 'output', 1, (p) => p.generated),
        line(data, 'prompt run', 2, (p) => p.computed),
        line(data, 'prompt cached', 3, (p) => p.cached),
      ])}
    </Panel>
  );
}

export function RequestsChart({ data }: { data: ChartData }) {
  return (
    <Panel title="Requests" help="How many requests were running and waiting at each scrape, once a second. What comes and goes between two scrapes is not seen.">
      {chart(data, 'Requests', 'not reported', count, [
        line(data, 'running', 1, (p) => p.running, true),
        line(data, 'waiting', 3, (p) => p.waiting, true),
      ], 2)}
    </Panel>
  );
}

export function DeviceChart({ data }: { data: ChartData }) {
  return (
    <Panel title="Device" help="Share of the time, mean of 5 s: busy with steps, or waiting for the host although requests were running. The rest of the time there was nothing to do.">
      {chart(data, 'Device', 'not reported', percent, [
        line(data, 'busy', 1, (p) => p.busy),
        line(data, 'waiting for the host', 5, (p) => p.idle),
      ], 1)}
    </Panel>
  );
}

const kLatencyTitles: Record<Latency, [string, string, string]> = {
  ttft: ['Time to first token', 'From arrival to the first token', 'no first tokens in this time'],
  itl: ['Inter-token latency', 'Between two tokens of an answer', 'no tokens in this time'],
  e2e: ['End-to-end latency', 'From arrival to the end of the answer', 'no request ended in this time'],
};

export function LatencyChart({ data, which }: { data: ChartData; which: Latency }) {
  const [title, what, empty] = kLatencyTitles[which];
  const reported = data.history.latest?.scrape.samples(`${{ ttft: 'vllm:time_to_first_token', itl: 'vllm:inter_token_latency', e2e: 'vllm:e2e_request_latency' }[which]}_seconds_bucket`).length !== 0;
  return (
    <Panel title={title} help={`${what}: half, 95 % and 99 % of the values of the 15 s before each point lie below the lines. Estimated from histogram buckets; “<” marks the lowest bucket.`}>
      {chart(data, title, reported ? empty : 'not reported', latencyFormat(data.history, which), [
        ...(Object.keys(kQuantiles) as (keyof typeof kQuantiles)[]).map((q, i) => line(data, q, [1, 4, 5][i]!, (p) => p.latency[which][q])),
      ])}
    </Panel>
  );
}

export function SharesChart({ data }: { data: ChartData }) {
  return (
    <Panel title="Cache and speculation" help="Of the prompt tokens looked up, the part found in the prefix cache; of the draft tokens verified, the part accepted. Over the 15 s before each point.">
      {chart(data, 'Cache and speculation', 'no prompts and no drafts in this time', percent, [
        line(data, 'prefix hits', 2, (p) => p.hit),
        line(data, 'drafts accepted', 4, (p) => p.acceptance),
      ], 1)}
    </Panel>
  );
}
