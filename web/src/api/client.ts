// Calls to the server that this page came from.

import { Store } from '../ui/store';

const kKeyName = 'deepinfer.key';
const kTimeout = 10_000;

/** Why a call brought nothing: the server can't be reached, wants a key, or refused. */
export class ServerError extends Error {
  constructor(
    readonly kind: 'unreachable' | 'key' | 'refused',
    message: string,
    readonly status = 0,
  ) {
    super(message);
  }
}

function storedKey(): string {
  try {
    return sessionStorage.getItem(kKeyName) ?? '';
  } catch {
    return ''; // storage may be forbidden
  }
}

/** The API key: kept for this tab alone, until it is closed. */
export const apiKey = new Store<string>(storedKey());

export function setKey(key: string): void {
  try {
    if (key === '') sessionStorage.removeItem(kKeyName);
    else sessionStorage.setItem(kKeyName, key);
  } catch {
    // Then it is kept in memory.
  }
  apiKey.set(key);
}

function messageOf(body: string, status: number): string {
  try {
    const parsed = JSON.parse(body) as { error?: { message?: unknown } };
    if (typeof parsed.error?.message === 'string') return parsed.error.message;
  } catch {
    // Not JSON: a proxy's page, say.
  }
  return body.length > 0 && body.length < 300 && !body.includes('<') ? body : `the server answered with status ${status}`;
}

export interface CallOptions {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
}

/** The response, if it is a good one. Paths are relative: a proxy may have put the server below a prefix. */
export async function call(path: string, options: CallOptions = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  if (apiKey.value !== '') headers.Authorization = `Bearer ${apiKey.value}`;
  if (options.body !== undefined) headers['Content-Type'] = 'application/json';
  let response: Response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: options.method ?? 'GET',
      headers,
      body: options.body === undefined ? null : JSON.stringify(options.body),
      signal: options.signal ?? AbortSignal.timeout(kTimeout),
      cache: 'no-store',
      credentials: 'same-origin',
    });
  } catch (error) {
    if (options.signal?.aborted === true) throw error;
    throw new ServerError('unreachable', 'the server does not answer');
  }
  if (response.ok) return response;
  const message = messageOf(await response.text().catch(() => ''), response.status);
  throw new ServerError(response.status === 401 ? 'key' : 'refused', message, response.status);
}

export async function getJson<T>(path: string): Promise<T> {
  return (await (await call(path)).json()) as T;
}
