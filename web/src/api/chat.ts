// One streamed answer of /v1/chat/completions.

import { call, ServerError } from './client';
import { EventParser } from './sse';

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
}

/** An answer as far as it has come. */
export interface Answer {
  id: string;
  reasoning: string;
  content: string;
  tools: ToolCall[];
  finish: string | null;
  usage: Usage | null;
}

export const emptyAnswer = (): Answer => ({ id: '', reasoning: '', content: '', tools: [], finish: null, usage: null });

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[];
}
interface Chunk {
  id?: string;
  error?: { message?: string };
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
    completion_tokens_details?: { reasoning_tokens?: number } | null;
  } | null;
}

function withTools(tools: ToolCall[], delta: NonNullable<Delta['tool_calls']>): ToolCall[] {
  const out = tools.map((tool) => ({ ...tool }));
  for (const part of delta) {
    const at = part.index ?? out.length;
    const tool = (out[at] ??= { id: '', name: '', arguments: '' });
    tool.id = part.id ?? tool.id;
    tool.name += part.function?.name ?? '';
    tool.arguments += part.function?.arguments ?? '';
  }
  return out;
}

/** The answer with one more chunk of the stream. */
export function applyChunk(answer: Answer, chunk: Chunk): Answer {
  if (chunk.error !== undefined) throw new ServerError('refused', chunk.error.message ?? 'the stream ended with an error');
  const out = { ...answer, id: chunk.id ?? answer.id };
  const choice = chunk.choices?.[0];
  if (choice?.delta !== undefined) {
    out.content += choice.delta.content ?? '';
    out.reasoning += choice.delta.reasoning_content ?? '';
    if (choice.delta.tool_calls !== undefined) out.tools = withTools(out.tools, choice.delta.tool_calls);
  }
  if (choice?.finish_reason != null) out.finish = choice.finish_reason;
  if (chunk.usage != null) {
    out.usage = {
      prompt_tokens: chunk.usage.prompt_tokens ?? 0,
      completion_tokens: chunk.usage.completion_tokens ?? 0,
      cached_tokens: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      reasoning_tokens: chunk.usage.completion_tokens_details?.reasoning_tokens ?? 0,
    };
  }
  return out;
}

/** Streams until the end; `follow` sees the answer after each piece. Stops when `signal` says so, which cancels the request. */
export async function streamChat(body: object, signal: AbortSignal, follow: (answer: Answer) => void): Promise<Answer> {
  const response = await call('v1/chat/completions', { method: 'POST', body, signal });
  if (response.body === null) throw new ServerError('unreachable', 'the answer has no body');
  const reader = response.body.getReader();
  const parser = new EventParser();
  let answer = emptyAnswer();
  for (;;) {
    let piece: ReadableStreamReadResult<Uint8Array>;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ServerError('unreachable', 'the connection broke in the middle of the answer');
    }
    if (piece.done) break;
    for (const event of parser.push(piece.value)) {
      if (event.data === '[DONE]') return answer;
      answer = applyChunk(answer, JSON.parse(event.data) as Chunk);
    }
    follow(answer);
  }
  if (answer.finish === null) throw new ServerError('unreachable', 'the stream ended before the answer did');
  return answer;
}
