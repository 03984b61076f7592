// Lines over time with axes. Pointing at one chart, or the arrow keys, mark the same moment in all of them.

import { useRef } from 'preact/hooks';
import { ago } from '../ui/format';
import { useWidth } from '../ui/size';
import { Store, useStore } from '../ui/store';
import { ticks, timeStep } from './scale';

export interface Series {
  name: string;
  color: number;
  /** One a time; undefined: nothing was measured. */
  values: (number | undefined)[];
  step?: boolean;
}

export interface LineChartProps {
  label: string;
  times: number[];
  /** Seconds from the left edge to the right, which is `now`. */
  span: number;
  now: number;
  series: Series[];
  format: (value: number | undefined) => string;
  empty: string;
  /** The vertical axis goes at least this far. */
  least?: number;
}

const kHeight = 148;
const kTop = 8;
const kBottom = 20;
const kLeft = 54;
const kRight = 10;
/** Moments further apart are not joined: the page was asleep, or the server away. */
const kGap = 12;

const cursor = new Store<number | null>(null);

function path(times: number[], values: (number | undefined)[], x: (t: number) => number, y: (v: number) => number, step: boolean): string {
  let out = '';
  let last: number | undefined;
  times.forEach((time, i) => {
    const value = values[i];
    if (value === undefined) {
      last = undefined;
      return;
    }
    const [px, py] = [x(time).toFixed(1), y(value).toFixed(1)];
    if (last === undefined || time - last > kGap) {
      // A single point would have no length; the round end of a line makes it a dot.
      out += `M${px} ${py}h.01`;
    } else {
      out += step ? `H${px}V${py}` : `L${px} ${py}`;
    }
    last = time;
  });
  return out;
}

function nearest(times: number[], time: number): number {
  let best = -1;
  times.forEach((t, i) => {
    if (best < 0 || Math.abs(t - time) < Math.abs(times[best]! - time)) best = i;
  });
  return best;
}

function timeLabel(before: number): string {
  if (before === 0) return 'now';
  return before % 60 === 0 ? `−${before / 60} min` : `−${before} s`;
}

export function LineChart(props: LineChartProps) {
  const { times, span, now, series, format } = props;
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const at = useStore(cursor);
  const inner = Math.max(width - kLeft - kRight, 1);
  const known = series.flatMap((s) => s.values.filter((v): v is number => v !== undefined));
  const yTicks = ticks(Math.max(props.least ?? 0, ...known), 3);
  const highest = yTicks[yTicks.length - 1]!;
  const x = (time: number): number => kLeft + inner * (1 - (now - time) / span);
  const y = (value: number): number => kTop + (kHeight - kTop - kBottom) * (1 - value / highest);
  const shown = at === null || times.length === 0 ? -1 : nearest(times, at);
  const read = shown < 0 ? times.length - 1 : shown;
  const step = timeStep(span, inner < 300 ? 3 : 5);

  const point = (event: PointerEvent): void => {
    const left = (event.currentTarget as Element).getBoundingClientRect().left;
    cursor.set(now - span * (1 - (event.clientX - left - kLeft) / inner));
  };
  const keys = (event: KeyboardEvent): void => {
    const move = event.key === 'ArrowLeft' ? -1 : event.key === 'ArrowRight' ? 1 : 0;
    if (event.key === 'Escape') cursor.set(null);
    if (move === 0) return;
    event.preventDefault();
    cursor.set(times[Math.min(Math.max(read + move, 0), times.length - 1)] ?? null);
  };

  return (
    <div class="chart" ref={box}>
      <ul class="legend">
        {series.map((s) => (
          <li key={s.name}>
            <span class={`swatch s${s.color}`} />
            {s.name} <b>{format(s.values[read])}</b>
          </li>
        ))}
        {shown >= 0 && <li class="when">{ago(now - times[shown]!)}</li>}
      </ul>
      <svg
        width={width}
        height={kHeight}
        tabIndex={0}
        role="img"
        aria-label={`${props.label}, last ${timeLabel(span).slice(1)}: ${series.map((s) => `${s.name} ${format(s.values[read])}`).join(', ')}`}
        onPointerMove={point}
        onPointerLeave={() => cursor.set(null)}
        onBlur={() => cursor.set(null)}
        onKeyDown={keys}
      >
        {yTicks.map((tick) => (
          <g key={tick}>
            <line class="grid" x1={kLeft} x2={kLeft + inner} y1={y(tick)} y2={y(tick)} />
            <text class="tick" x={kLeft - 8} y={y(tick) + 4} text-anchor="end">
              {format(tick)}
            </text>
          </g>
        ))}
        {Array.from({ length: Math.floor(span / step) + 1 }, (_, i) => i * step).map((before) => (
          <text class="tick" key={before} x={x(now - before)} y={kHeight - 4} text-anchor={before === 0 ? 'end' : before === span ? 'start' : 'middle'}>
            {timeLabel(before)}
          </text>
        ))}
        {series.map((s) => (
          <path class={`line s${s.color}`} key={s.name} d={path(times, s.values, x, y, s.step === true)} />
        ))}
        {shown >= 0 && <line class="cursor" x1={x(times[shown]!)} x2={x(times[shown]!)} y1={kTop} y2={kHeight - kBottom} />}
        {shown >= 0 &&
          series.map((s) => {
            const value = s.values[shown];
            return value !== undefined && <circle class={`dot s${s.color}`} key={s.name} cx={x(times[shown]!)} cy={y(value)} r={3} />;
          })}
        {known.length === 0 && (
          <text class="nothing" x={kLeft + inner / 2} y={(kHeight - kBottom + kTop) / 2 + 4} text-anchor="middle">
            {props.empty}
          </text>
        )}
      </svg>
    </div>
  );
}
