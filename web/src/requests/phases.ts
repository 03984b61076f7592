// What the phases of a request are, and their lengths.

import type { Phase, TimelineRequest } from '../api/debug';

export const kPhases: Record<string, { title: string; help: string; color: number }> = {
  receive: { title: 'Receive', color: 6, help: 'The request is parsed, rendered and tokenised, until the engine has it.' },
  compile: { title: 'Compile', color: 5, help: 'Its structured output is compiled.' },
  lookup: { title: 'Lookup', color: 7, help: 'Its prefix is looked for in the tiers below the device: host memory, disk, other machines.' },
  queue: { title: 'Queue', color: 3, help: 'It waits for the plan that admits it.' },
  match: { title: 'Match', color: 7, help: 'Prefix look-up and adoption of cached pages, until its first command is on its way.' },
  load: { title: 'Load', color: 2, help: 'Pages of its prefix are on their way from a lower tier.' },
  handoff: { title: 'Hand-off', color: 9, help: 'Its first command is on its way; the device still runs the step before.' },
  prefill: { title: 'Prefill', color: 1, help: 'From the device’s begin of its first step to the logits of the first token.' },
  first_decode: { title: 'First decode', color: 4, help: 'The first token is drawn: masks, sampling.' },
  publish: { title: 'Publish', color: 8, help: 'The engine’s thread makes an output of the token.' },
  deliver: { title: 'Deliver', color: 6, help: 'Until the thread that writes the answer has the token.' },
  decode: { title: 'Decode', color: 2, help: 'From the first token’s delivery to the last’s.' },
};

export const phaseInfo = (name: string) => kPhases[name] ?? { title: name, help: 'A phase that this page does not know.', color: 6 };

export const length = (phase: Phase): number => Math.max(phase.end - phase.begin, 0);

/** The phases that make up the time to first token: all but the decode behind it. */
export const untilFirst = (request: TimelineRequest): Phase[] => request.phases.filter((p) => p.name !== 'decode');

/** How far the lengths of the phases are from the measured time to first token, as a share of it; null before that is known. */
export function unexplained(request: TimelineRequest): number | null {
  if (request.ttft === null || request.ttft <= 0) return null;
  return (request.ttft - untilFirst(request).reduce((sum, p) => sum + length(p), 0)) / request.ttft;
}
