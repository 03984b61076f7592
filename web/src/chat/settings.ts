// What a request says beside its messages. An empty field is left out: then the server's own value holds.

import { Store } from '../ui/store';

export interface Settings {
  model: string;
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  /** '' : the server's default; 'off': no thinking. */
  effort: string;
  /** A JSON list of functions, as `tools` takes it. */
  tools: string;
}

export const kEfforts = ['', 'off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'];
const kName = 'deepinfer.chat';
const kEmpty: Settings = { model: '', system: '', temperature: '', topP: '', maxTokens: '', seed: '', effort: '', tools: '' };

function stored(): Settings {
  try {
    const value = JSON.parse(localStorage.getItem(kName) ?? '{}') as Record<string, unknown>;
    const texts = Object.entries(value).filter(([key, v]) => key in kEmpty && typeof v === 'string');
    return { ...kEmpty, ...Object.fromEntries(texts) };
  } catch {
    return kEmpty;
  }
}

export const settings = new Store<Settings>(stored());

export function changeSettings(change: Partial<Settings>): void {
  settings.set({ ...settings.value, ...change });
  try {
    localStorage.setItem(kName, JSON.stringify(settings.value));
  } catch {
    // Then they hold until the page is closed.
  }
}

/** The tools of the settings; throws with what is wrong about them. */
export function parseTools(text: string): unknown[] {
  if (text.trim() === '') return [];
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`tools: not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (!Array.isArray(value)) throw new Error('tools: must be a list, [{"type": "function", "function": {"name": ...}}, ...]');
  return value;
}

/** The fields of a request; what is wrong about a number the server says. */
export function requestFields(s: Settings, model: string): Record<string, unknown> {
  const tools = parseTools(s.tools);
  const number = (text: string): number | undefined => (text.trim() === '' ? undefined : Number(text));
  const fields = {
    model: s.model || model,
    temperature: number(s.temperature),
    top_p: number(s.topP),
    max_tokens: number(s.maxTokens),
    seed: number(s.seed),
    thinking: s.effort === 'off' ? { type: 'disabled' } : s.effort === '' ? undefined : { type: 'enabled' },
    reasoning_effort: s.effort === 'off' || s.effort === '' ? undefined : s.effort,
    tools: tools.length > 0 ? tools : undefined,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
