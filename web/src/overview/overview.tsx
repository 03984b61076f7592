// One look at the machine.

import { useState } from 'preact/hooks';
import { history, server } from '../api/server';
import { useStore } from '../ui/store';
import { CachePanel, EndingsPanel, EnginePanel, PagesPanel, ProcessPanel, RequestTimePanel } from './tables';
import { DeviceChart, LatencyChart, RequestsChart, SharesChart, ThroughputChart } from './charts';
import { ExpertsPanel } from './experts';
import { headline, pointsOf } from './figures';
import { Tiles } from './tiles';

const kSpans = [60, 300, 900];

export function Overview() {
  useStore(server);
  const [wanted, setSpan] = useState<number | null>(null);
  const seen = (history.latest?.time ?? 0) - (history.at(0)?.time ?? 0);
  const span = wanted ?? (seen > 60 ? 300 : 60); // until somebody chooses: what there is to see
  const head = headline(history);
  const data = { history, points: pointsOf(history, span), span, now: history.latest?.time ?? 0 };
  return (
    <main id="main" class="overview" tabIndex={-1}>
      <div class="bar-above">
        <h1>Overview</h1>
        <div class="choice" role="group" aria-label="Time span of the charts">
          {kSpans.map((s) => (
            <button type="button" key={s} aria-pressed={s === span} onClick={() => setSpan(s)}>
              {s / 60} min
            </button>
          ))}
        </div>
      </div>
      <Tiles head={head} />
      {head !== undefined && (
        <>
        <div class="panels">
          <ThroughputChart data={data} />
          <RequestsChart data={data} />
          <DeviceChart data={data} />
          <LatencyChart data={data} which="ttft" />
          <LatencyChart data={data} which="itl" />
          <LatencyChart data={data} which="e2e" />
          <RequestTimePanel head={head} />
          <PagesPanel head={head} />
          <SharesChart data={data} />
        </div>
        <div class="panels four">
          <CachePanel head={head} />
          <EnginePanel head={head} />
          <EndingsPanel head={head} />
          <ProcessPanel head={head} />
        </div>
        <ExpertsPanel />
        </>
      )}
    </main>
  );
}
