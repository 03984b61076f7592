// A table of many small numbers as colours, drawn on a canvas. The pointer or the arrow keys choose a cell.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { shownTheme, theme } from '../ui/theme';
import { useWidth } from '../ui/size';
import { useStore } from '../ui/store';
import { pointerAt, startDrawing } from './canvas';

export interface HeatRow {
  name: string;
  values: number[];
}

export interface HeatMapProps {
  label: string;
  rows: HeatRow[];
  /** 0: as the empty page, 1: the strongest colour. */
  shade: (value: number, row: HeatRow) => number;
  describe: (row: number, column: number) => string;
}

const kLeft = 54;
const kGapBelow = 12; // cells narrower than this touch each other

type Colour = [number, number, number];
const ramps: Record<'light' | 'dark', Colour[]> = {
  light: [[240, 243, 248], [173, 203, 245], [62, 129, 222], [21, 62, 140], [10, 24, 66]],
  dark: [[27, 33, 43], [28, 66, 122], [49, 122, 201], [125, 190, 247], [236, 247, 255]],
};

export function rampColour(shade: number, dark: boolean): string {
  const ramp = ramps[dark ? 'dark' : 'light'];
  const at = Math.min(Math.max(shade, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  const mix = ramp[low]!.map((c, i) => Math.round(c + (ramp[low + 1]![i]! - c) * (at - low)));
  return `rgb(${mix.join(' ')})`;
}

export function HeatMap({ label, rows, shade, describe }: HeatMapProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  useStore(theme);
  const dark = shownTheme() === 'dark';
  const [cell, setCell] = useState<[number, number] | null>(null);
  const columns = Math.max(...rows.map((r) => r.values.length), 1);
  const cellWidth = Math.max((width - kLeft) / columns, 1);
  const cellHeight = rows.length > 24 ? 10 : 18;
  const gap = cellWidth > kGapBelow ? 1 : 0;
  const height = rows.length * cellHeight;

  useLayoutEffect(() => {
    const target = canvas.current;
    if (target === null || width === 0) return;
    const { draw, style } = startDrawing(target, width, height);
    rows.forEach((row, r) => {
      const top = r * cellHeight;
      draw.fillStyle = style.color;
      if (cellHeight >= 12 || r % 2 === 0) draw.fillText(row.name, 0, top + cellHeight / 2);
      row.values.forEach((value, c) => {
        draw.fillStyle = rampColour(shade(value, row), dark);
        // Whole pixels at both edges: no seams between narrow cells.
        const left = Math.round(kLeft + c * cellWidth);
        const right = Math.round(kLeft + (c + 1) * cellWidth);
        draw.fillRect(left, top, right - left - gap, cellHeight - 1);
      });
    });
    if (cell !== null) {
      draw.strokeStyle = style.getPropertyValue('--focus') || style.color;
      draw.lineWidth = 2;
      draw.strokeRect(kLeft + cell[1] * cellWidth, cell[0] * cellHeight, cellWidth - gap, cellHeight - 1);
    }
  });

  const choose = (row: number, column: number): void =>
    setCell([Math.min(Math.max(row, 0), rows.length - 1), Math.min(Math.max(column, 0), columns - 1)]);
  const keys = (event: KeyboardEvent): void => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === 'Escape') setCell(null);
    if (step === undefined) return;
    event.preventDefault();
    if (cell === null) choose(0, 0);
    else choose(cell[0] + step[0]!, cell[1] + step[1]!);
  };
  const point = (event: PointerEvent): void => {
    const [x, y] = pointerAt(event, canvas.current!);
    const column = Math.floor((x - kLeft) / cellWidth);
    if (column < 0) setCell(null);
    else choose(Math.floor(y / cellHeight), column);
  };

  return (
    <div class="heat" ref={box}>
      <canvas ref={canvas} tabIndex={0} role="img" aria-label={label} onKeyDown={keys} onPointerMove={point} onPointerLeave={() => setCell(null)} onBlur={() => setCell(null)} />
      <p class="reading" aria-live="polite">
        {cell !== null && cell[0] < rows.length ? describe(cell[0], cell[1]) : 'Point at a cell, or move with the arrow keys.'}
      </p>
    </div>
  );
}
