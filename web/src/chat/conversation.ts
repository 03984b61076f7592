// The conversation of this page. It lives beside the components, so that an answer goes on while another page is looked at.

import { emptyAnswer, streamChat, type Answer } from '../api/chat';
import { ServerError } from '../api/client';
import { Store } from '../ui/store';
import { requestFields, settings } from './settings';

export interface UserTurn {
  role: 'user';
  text: string;
}
export interface ToolTurn {
  role: 'tool';
  call: string;
  name: string;
  text: string;
}
export interface AnswerTurn {
  role: 'assistant';
  answer: Answer;
  state: 'streaming' | 'done' | 'stopped' | 'failed';
  error: string;
  /** Seconds on the page's clock. */
  sent: number;
  first: number | null;
  thought: number | null;
  ended: number | null;
}
export type Turn = UserTurn | ToolTurn | AnswerTurn;

export const turns = new Store<Turn[]>([]);
let running: AbortController | null = null;

const now = (): number => performance.now() / 1000;

/** The messages that the next request carries. */
export function toMessages(system: string, conversation: readonly Turn[]): Record<string, unknown>[] {
  const out: Record<string, unknown>[] = system.trim() === '' ? [] : [{ role: 'system', content: system }];
  for (const turn of conversation) {
    if (turn.role === 'user') out.push({ role: 'user', content: turn.text });
    else if (turn.role === 'tool') out.push({ role: 'tool', tool_call_id: turn.call, content: turn.text });
    else if (turn.answer.content !== '' || turn.answer.tools.length > 0) {
      const tools = turn.answer.tools.map((t) => ({ id: t.id, type: 'function', function: { name: t.name, arguments: t.arguments } }));
      // What was thought before a call belongs to the answer that goes on after it.
      out.push(tools.length > 0 ? { role: 'assistant', content: turn.answer.content, reasoning_content: turn.answer.reasoning, tool_calls: tools } : { role: 'assistant', content: turn.answer.content });
    }
  }
  return out;
}

function replaceLast(change: Partial<AnswerTurn>): void {
  const last = turns.value[turns.value.length - 1];
  if (last?.role === 'assistant') turns.set([...turns.value.slice(0, -1), { ...last, ...change }]);
}

function follow(answer: Answer): void {
  const last = turns.value[turns.value.length - 1];
  if (last?.role !== 'assistant') return;
  const begun = answer.reasoning !== '' || answer.content !== '' || answer.tools.length > 0;
  const thought = answer.content !== '' || answer.tools.length > 0;
  replaceLast({ answer, first: last.first ?? (begun ? now() : null), thought: last.thought ?? (thought ? now() : null) });
}

async function answer(model: string): Promise<void> {
  const messages = toMessages(settings.value.system, turns.value);
  turns.set([...turns.value, { role: 'assistant', answer: emptyAnswer(), state: 'streaming', error: '', sent: now(), first: null, thought: null, ended: null }]);
  const control = new AbortController();
  running = control;
  const mine = (): boolean => running === control;
  try {
    const body = { ...requestFields(settings.value, model), messages, stream: true, stream_options: { include_usage: true } };
    const whole = await streamChat(body, control.signal, (part) => mine() && follow(part));
    if (!mine()) return;
    follow(whole);
    replaceLast({ state: 'done', ended: now() });
  } catch (error) {
    if (!mine()) return;
    const stopped = control.signal.aborted;
    const text = error instanceof ServerError && error.status === 429 ? `${error.message} (try again in a moment)` : error instanceof Error ? error.message : String(error);
    replaceLast({ state: stopped ? 'stopped' : 'failed', error: stopped ? '' : text, ended: now() });
  }
  running = null;
}

export function send(text: string, model: string): void {
  if (running !== null) return;
  turns.set([...turns.value, { role: 'user', text }]);
  void answer(model);
}

/** Gives the results of tool calls, and lets the answer go on. */
export function sendResults(results: ToolTurn[], model: string): void {
  if (running !== null) return;
  turns.set([...turns.value, ...results]);
  void answer(model);
}

/** Asks again for the last answer. */
export function retry(model: string): void {
  if (running !== null) return;
  const list = turns.value;
  if (list[list.length - 1]?.role === 'assistant') turns.set(list.slice(0, -1));
  void answer(model);
}

export function stop(): void {
  running?.abort();
}

export function clear(): void {
  const control = running;
  running = null;
  control?.abort();
  turns.set([]);
}
