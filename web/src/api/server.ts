// What the page knows of the server: polled while it is open.

import { History } from '../metrics/history';
import { parseMetrics } from '../metrics/text';
import { Store } from '../ui/store';
import { apiKey, call, getJson, ServerError } from './client';

export const kKeepSeconds = 15 * 60;
const kEvery = 1000;
const kEveryHidden = 10_000;

export interface Model {
  id: string;
  max_model_len?: number;
}

export interface ServerState {
  status: 'connecting' | 'live' | 'unreachable' | 'key' | 'refused';
  message: string;
  models: Model[];
  version: string;
  commit: string;
  /** Counts scrapes, so that followers notice a new one. */
  scrapes: number;
}

export const history = new History(kKeepSeconds);
export const server = new Store<ServerState>({ status: 'connecting', message: '', models: [], version: '', commit: '', scrapes: 0 });

let known = false;
let restarts = 0;

async function identify(): Promise<Partial<ServerState>> {
  const [models, version] = await Promise.all([
    getJson<{ data?: Model[] }>('v1/models'),
    getJson<{ version?: string; commit?: string }>('version'),
  ]);
  return { models: models.data ?? [], version: version.version ?? '', commit: version.commit ?? '' };
}

async function poll(): Promise<void> {
  try {
    const text = await (await call('metrics')).text();
    history.add(performance.now() / 1000, parseMetrics(text));
    if (history.restarts !== restarts) known = false; // perhaps another version, another model
    restarts = history.restarts;
    const identity = known ? {} : await identify();
    known = true;
    server.set({ ...server.value, ...identity, status: 'live', message: '', scrapes: server.value.scrapes + 1 });
  } catch (error) {
    const failure = error instanceof ServerError ? error : new ServerError('refused', String(error));
    known = false;
    server.set({ ...server.value, status: failure.kind, message: failure.message });
  }
}

/** Polls until the page is gone: every second, seldom while nobody looks. A key given brings the next poll forward. */
export function startPolling(): void {
  let timer = 0;
  let busy = false;
  let again = false;
  const run = async (): Promise<void> => {
    again = busy;
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    await poll();
    busy = false;
    if (again) return run();
    // Without a key there is nothing to ask for again until there is one.
    if (server.value.status !== 'key') timer = window.setTimeout(() => void run(), document.hidden ? kEveryHidden : kEvery);
  };
  apiKey.subscribe(() => void run());
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && server.value.status !== 'key') void run();
  });
  void run();
}
