// Axes: round steps, and where values lie.

/** 1, 2 or 5 times a power of ten, at least `value`. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) {
    if (step * power >= value * (1 - 1e-9)) return step * power;
  }
  return 10 * power;
}

/** Ticks from 0 to at least `highest`, about `wanted` steps of a round size. Nothing to show: 0 and 1. */
export function ticks(highest: number, wanted: number): number[] {
  if (!(highest > 0) || !Number.isFinite(highest)) return [0, 1];
  const step = roundUp(highest / wanted);
  const steps = Math.max(1, Math.ceil(highest / step - 1e-9));
  return Array.from({ length: steps + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** Of times: the same in steps that people count time in. */
export function timeStep(span: number, wanted: number): number {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
  return steps.find((step) => span / step <= wanted) ?? 7200;
}
