// Which experts the model chooses, layer by layer.

import { useEffect, useState } from 'preact/hooks';
import { expertCounts, type Debug, type Experts } from '../api/debug';
import { HeatMap, rampColour } from '../charts/heat_map';
import { Empty, Panel } from '../ui/panel';
import { count, percent, whole } from '../ui/format';
import { shownTheme, theme } from '../ui/theme';
import { useStore } from '../ui/store';

const kEvery = 5000;
/** This many times the mean has the strongest colour. */
const kStrongest = 4;

/** The counts between two replies; of a server that began anew, the later one's. */
export function expertsSince(earlier: Experts, later: Experts): Experts {
  const layers = later.layers.map((layer, i) => {
    const before = earlier.layers[i]?.counts;
    const counts = layer.counts.map((n, e) => n - (before?.[e] ?? 0));
    return counts.some((n) => n < 0) ? layer : { ...layer, counts, tokens: counts.reduce((a, b) => a + b, 0) };
  });
  return { ...later, layers };
}

/** The largest count over the mean; 0 if nothing was chosen. */
export function imbalance(counts: number[]): number {
  const sum = counts.reduce((a, b) => a + b, 0);
  return sum === 0 ? 0 : (Math.max(...counts) * counts.length) / sum;
}

function Legend() {
  useStore(theme);
  const dark = shownTheme() === 'dark';
  return (
    <p class="ramp">
      never
      <svg width="120" height="10" aria-hidden="true">
        {Array.from({ length: 24 }, (_, i) => (
          <rect key={i} x={i * 5} width="5" height="10" fill={rampColour(i / 23, dark)} />
        ))}
      </svg>
      {kStrongest} × the mean or more
    </p>
  );
}

function Map({ experts }: { experts: Experts }) {
  const rows = experts.layers.map((layer) => ({ name: `${layer.draft ? 'draft' : 'layer'} ${layer.layer}`, values: layer.counts }));
  const describe = (r: number, c: number): string => {
    const layer = experts.layers[r]!;
    const chosen = layer.counts[c] ?? 0;
    const mean = layer.counts.reduce((a, b) => a + b, 0) / Math.max(layer.counts.length, 1);
    const times = mean > 0 ? `${(chosen / mean).toFixed(2)} × the mean, ${percent(chosen / (mean * layer.counts.length))} of the layer` : 'nothing ran';
    return `${rows[r]!.name}, expert ${c}: chosen ${whole(chosen)} times, ${times}; the layer’s largest is ${imbalance(layer.counts).toFixed(2)} × its mean`;
  };
  const shade = (value: number, row: { values: number[] }): number => {
    const sum = row.values.reduce((a, b) => a + b, 0);
    return sum === 0 ? 0 : Math.sqrt((value * row.values.length) / sum / kStrongest);
  };
  const most = [...experts.layers].sort((a, b) => imbalance(b.counts) - imbalance(a.counts))[0];
  return (
    <>
      <HeatMap label={`Experts by layer: ${rows.length} layers of ${experts.experts} experts; arrow keys read single cells`} rows={rows} shade={shade} describe={describe} />
      <div class="under">
        <Legend />
        {most !== undefined && <p>Most uneven: {most.draft ? 'draft stage' : 'layer'} {most.layer}, {imbalance(most.counts).toFixed(2)} × the mean</p>}
        <p>{count(experts.layers.reduce((sum, l) => sum + l.tokens, 0))} choices</p>
      </div>
    </>
  );
}

export function ExpertsPanel() {
  const [reply, setReply] = useState<Debug<Experts> | null>(null);
  const [first, setFirst] = useState<Experts | null>(null);
  const [all, setAll] = useState(true);
  useEffect(() => {
    let on = true;
    let timer = 0;
    const ask = async (): Promise<void> => {
      const got = await expertCounts();
      if (!on) return;
      setReply(got);
      if ('value' in got) setFirst((was) => was ?? got.value);
      if ('missing' in got && got.absent === true) return; // that does not change while the server runs
      timer = window.setTimeout(() => void ask(), document.hidden ? 60_000 : kEvery);
    };
    void ask();
    return () => {
      on = false;
      clearTimeout(timer);
    };
  }, []);
  const value = reply !== null && 'value' in reply ? reply.value : null;
  const shown = value === null || all || first === null ? value : expertsSince(first, value);
  return (
    <Panel
      wide
      title="Experts by layer"
      help="How often each expert was chosen, relative to the mean of its layer. An even layer is all of one colour; dark columns or bright cells show experts that do more than their share."
      aside={
        value !== null && (
          <div class="choice" role="group" aria-label="Time span of the experts">
            <button type="button" aria-pressed={all} onClick={() => setAll(true)}>since the start</button>
            <button type="button" aria-pressed={!all} onClick={() => { setFirst(value); setAll(false); }}>from now on</button>
          </div>
        )
      }
    >
      {reply === null && <Empty>Asking…</Empty>}
      {reply !== null && 'missing' in reply && <Empty>{reply.missing}</Empty>}
      {shown !== null && (shown.layers.length === 0 ? <Empty>not reported</Empty> : <Map experts={shown} />)}
    </Panel>
  );
}
