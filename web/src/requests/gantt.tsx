// Spans on a common time axis, drawn on a canvas. Drag or arrow keys move, wheel or + and - zoom, 0 shows all.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Span } from '../api/debug';
import { pointerAt, startDrawing, type Drawing } from '../charts/canvas';
import { roundUp } from '../charts/scale';
import { seconds } from '../ui/format';
import { useWidth } from '../ui/size';
import { theme } from '../ui/theme';
import { useStore } from '../ui/store';
import { layLanes, type Lane } from './lanes';
import { kPhases } from './phases';

const kLeft = 72;
const kLane = 18;
const kTop = 22;
const kShortest = 1e-6; // seconds across the picture

const kTrackColours: Record<string, number> = { engine: 3, device: 1, ops: 4, cache: 2, network: 5 };

const colourOf = (span: Span): number => (span.track === 'request' ? (kPhases[span.name]?.color ?? (span.name === 'preempted' ? 5 : span.name.startsWith('prefill') ? 1 : 2)) : (kTrackColours[span.track] ?? 6));

interface View {
  begin: number;
  end: number;
}

function spanText(span: Span, origin: number): string {
  const args = Object.entries(span.args ?? {}).map(([name, value]) => `${name} ${String(value)}`);
  const step = span.step === undefined ? [] : [`step ${span.step}`];
  const when = span.end > span.begin ? `${seconds(span.end - span.begin)}, from ${seconds(span.begin - origin)}` : `at ${seconds(span.begin - origin)}`;
  return [`${span.track}: ${span.name}`, when, ...step, ...args].join(' · ');
}

interface TimeDrawing extends Drawing {
  width: number;
  x: (time: number) => number;
}

function drawAxis({ draw, style, width, x }: TimeDrawing, view: View, origin: number, height: number): void {
  const step = roundUp((view.end - view.begin) / Math.max((width - kLeft) / 110, 1));
  draw.textAlign = 'center';
  for (let t = Math.ceil((view.begin - origin) / step) * step; t <= view.end - origin; t += step) {
    const at = Math.round(x(origin + t)) + 0.5;
    draw.strokeStyle = style.getPropertyValue('--grid');
    draw.beginPath();
    draw.moveTo(at, kTop - 4);
    draw.lineTo(at, height);
    draw.stroke();
    draw.fillStyle = style.getPropertyValue('--muted');
    if (at > kLeft + 20 && at < width - 24) draw.fillText(seconds(Math.abs(t) < step / 1e6 ? 0 : t), at, 9);
  }
  draw.textAlign = 'left';
}

function drawLane({ draw, style, width, x }: TimeDrawing, lane: Lane, top: number, chosen: Span | null): void {
  for (const span of lane.spans) {
    const left = Math.max(x(span.begin), kLeft);
    const right = Math.min(Math.max(x(span.end), left + 1.5), width);
    if (x(span.end) < kLeft || left > width) continue;
    draw.fillStyle = style.getPropertyValue(`--s${colourOf(span)}`);
    draw.globalAlpha = span.track === 'request' || span === chosen ? 1 : 0.8;
    draw.fillRect(left, top + 2, right - left, kLane - 4);
    draw.globalAlpha = 1;
    if (right - left > 34) {
      draw.save();
      draw.beginPath();
      draw.rect(left, top, right - left - 3, kLane);
      draw.clip();
      draw.fillStyle = style.getPropertyValue('--on-series');
      draw.fillText(span.name, left + 4, top + kLane / 2 + 0.5);
      draw.restore();
    }
    if (span === chosen) {
      draw.strokeStyle = style.getPropertyValue('--text');
      draw.lineWidth = 1.5;
      draw.strokeRect(left, top + 2, right - left, kLane - 4);
      draw.lineWidth = 1;
    }
  }
}

export function Gantt({ spans, begin, end, origin }: { spans: Span[]; begin: number; end: number; origin: number }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  useStore(theme);
  const lanes = useMemo(() => layLanes(spans), [spans]);
  const all = useMemo<View>(() => {
    const margin = Math.max((end - begin) * 0.01, kShortest);
    return { begin: begin - margin, end: end + margin };
  }, [begin, end]);
  const [view, setView] = useState<View>(all);
  const [chosen, setChosen] = useState<Span | null>(null);
  useEffect(() => setView(all), [all]);
  const height = kTop + lanes.length * kLane + 4;
  const inner = Math.max(width - kLeft, 1);
  const x = (time: number): number => kLeft + (inner * (time - view.begin)) / (view.end - view.begin);
  const timeAt = (px: number): number => view.begin + ((px - kLeft) / inner) * (view.end - view.begin);

  useLayoutEffect(() => {
    const target = canvas.current;
    if (target === null || width === 0) return;
    const drawing = { ...startDrawing(target, width, height), width, x };
    const { draw, style } = drawing;
    drawAxis(drawing, view, origin, height);
    lanes.forEach((lane, i) => {
      const top = kTop + i * kLane;
      if (lane.first) {
        draw.fillStyle = style.getPropertyValue('--muted');
        draw.fillText(lane.track, 0, top + kLane / 2);
        draw.fillStyle = style.getPropertyValue('--grid');
        draw.fillRect(0, top, width, 1);
      }
      drawLane(drawing, lane, top, chosen);
    });
  });

  const zoom = (factor: number, around: number): void => {
    const length = Math.min(Math.max((view.end - view.begin) * factor, kShortest), (all.end - all.begin) * 2);
    const share = (around - view.begin) / (view.end - view.begin);
    setView({ begin: around - length * share, end: around + length * (1 - share) });
  };
  const move = (share: number): void => {
    const by = (view.end - view.begin) * share;
    setView({ begin: view.begin + by, end: view.end + by });
  };
  const middle = (view.begin + view.end) / 2;
  const keys = (event: KeyboardEvent): void => {
    const actions: Record<string, () => void> = {
      ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), '+': () => zoom(0.6, middle), '=': () => zoom(0.6, middle), '-': () => zoom(1 / 0.6, middle), 0: () => setView(all),
    };
    const action = actions[event.key];
    if (action === undefined || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  };
  const drag = useRef<number | null>(null);
  const point = (event: PointerEvent): void => {
    if (drag.current !== null) {
      const by = ((drag.current - event.clientX) / inner) * (view.end - view.begin);
      drag.current = event.clientX;
      setView({ begin: view.begin + by, end: view.end + by });
      return;
    }
    const [px, py] = pointerAt(event, canvas.current!);
    const lane = lanes[Math.floor((py - kTop) / kLane)];
    const slack = (3 / inner) * (view.end - view.begin);
    const time = timeAt(px);
    // The shortest one there: the longer ones can be pointed at elsewhere.
    const under = lane?.spans.filter((s) => s.begin - slack <= time && time <= s.end + slack).sort((a, b) => a.end - a.begin - (b.end - b.begin))[0];
    setChosen(under ?? null);
  };
  useEffect(() => {
    const target = canvas.current;
    if (target === null) return;
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.shiftKey && document.activeElement !== target) return; // the page scrolls
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, timeAt(pointerAt(event, target)[0]));
    };
    target.addEventListener('wheel', wheel, { passive: false });
    return () => target.removeEventListener('wheel', wheel);
  });

  return (
    <div class="gantt" ref={box}>
      <div class="choice" role="group" aria-label="Part of the timeline shown">
        <button type="button" onClick={() => move(-0.25)} aria-label="Earlier">←</button>
        <button type="button" onClick={() => zoom(0.6, middle)} aria-label="Zoom in">+</button>
        <button type="button" onClick={() => zoom(1 / 0.6, middle)} aria-label="Zoom out">−</button>
        <button type="button" onClick={() => move(0.25)} aria-label="Later">→</button>
        <button type="button" onClick={() => setView(all)}>all</button>
      </div>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="img"
        aria-label={`Timeline of ${spans.length} spans; arrow keys move, plus and minus zoom, 0 shows all. The phases are in the table above.`}
        onKeyDown={keys}
        onPointerDown={(e) => { drag.current = e.clientX; canvas.current!.setPointerCapture(e.pointerId); }}
        onPointerUp={() => { drag.current = null; }}
        onPointerMove={point}
        onPointerLeave={() => setChosen(null)}
      />
      <p class="reading">{chosen === null ? 'Point at a span for its times. Drag to move; zoom with the buttons, + and −, or the wheel once the picture has the focus.' : spanText(chosen, origin)}</p>
    </div>
  );
}
