// One way to write each kind of figure. Values that are not there are "–"; a unit is parted by a narrow space.

export const kNone = '–';
const kSpace = '\u202f';

function digits(value: number, most: number): string {
  return value.toLocaleString('en-US', { maximumFractionDigits: most, minimumFractionDigits: 0 }).replaceAll(',', kSpace);
}

/** Three significant digits, whole above 100. */
function significant(value: number): string {
  const size = Math.abs(value);
  return digits(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** 0.3, 12.5, 1 234, 56.8 k, 1.2 M. */
export function count(value: number | undefined): string {
  if (value === undefined || Number.isNaN(value)) return kNone;
  const size = Math.abs(value);
  if (size >= 1e9) return `${significant(value / 1e9)}${kSpace}G`;
  if (size >= 1e6) return `${significant(value / 1e6)}${kSpace}M`;
  if (size >= 1e4) return `${significant(value / 1e3)}${kSpace}k`;
  return significant(value);
}

/** In full: 239 674. */
export function whole(value: number | undefined): string {
  return value === undefined || Number.isNaN(value) ? kNone : digits(value, 0);
}

/** 850 µs, 12.5 ms, 1.2 s, 3 min 20 s. */
export function seconds(value: number | undefined): string {
  if (value === undefined || Number.isNaN(value)) return kNone;
  const size = Math.abs(value);
  if (size === 0) return `0${kSpace}s`;
  if (size < 1e-6) return `${significant(value * 1e9)}${kSpace}ns`;
  if (size < 1e-3) return `${significant(value * 1e6)}${kSpace}µs`;
  if (size < 1) return `${significant(value * 1e3)}${kSpace}ms`;
  if (size < 120) return `${significant(value)}${kSpace}s`;
  const all = Math.round(value);
  if (size < 7200) return `${Math.floor(all / 60)}${kSpace}min ${all % 60}${kSpace}s`;
  return `${Math.floor(all / 3600)}${kSpace}h ${Math.floor((all % 3600) / 60)}${kSpace}min`;
}

/** A share, 0 to 1: 4.2 %, 37 %. */
export function percent(value: number | undefined): string {
  if (value === undefined || Number.isNaN(value)) return kNone;
  const hundred = value * 100;
  const size = Math.abs(hundred);
  if (size > 0 && size < 0.01) return `< 0.01${kSpace}%`;
  return `${digits(hundred, size >= 10 || size === 0 ? 0 : size >= 1 ? 1 : 2)}${kSpace}%`;
}

/** 512 B, 3.2 MiB. */
export function bytes(value: number | undefined): string {
  if (value === undefined || Number.isNaN(value)) return kNone;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (Math.abs(value) >= 1024 && at + 1 < units.length) {
    value /= 1024;
    at += 1;
  }
  return `${significant(value)}${kSpace}${units[at]}`;
}

export function perSecond(value: number | undefined): string {
  return value === undefined ? kNone : `${count(value)}/s`;
}

/** How long ago: now, 12 s ago, 4 min ago. */
export function ago(value: number): string {
  if (value < 1) return 'now';
  if (value < 120) return `${Math.round(value)}${kSpace}s ago`;
  if (value < 7200) return `${Math.round(value / 60)}${kSpace}min ago`;
  return `${Math.round(value / 3600)}${kSpace}h ago`;
}
