// Light or dark: as the system has it, until somebody chooses.

import { Store } from './store';

export type Theme = 'system' | 'light' | 'dark';
const kName = 'deepinfer.theme';

function stored(): Theme {
  try {
    const value = localStorage.getItem(kName);
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

export const theme = new Store<Theme>(stored());

/** What is shown now. */
export function shownTheme(): 'light' | 'dark' {
  if (theme.value !== 'system') return theme.value;
  return matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
}

export function setTheme(value: Theme): void {
  try {
    localStorage.setItem(kName, value);
  } catch {
    // Then it holds until the page is closed.
  }
  apply(value);
}

/** The document says what is shown: style sheets have each colour once. */
function apply(value: Theme): void {
  theme.set(value);
  document.documentElement.dataset.theme = shownTheme();
}

export function startTheme(): void {
  apply(theme.value);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => apply(theme.value));
}
