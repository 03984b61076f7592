// One request: its phases, and everything that happened meanwhile.

import type { Timeline, TimelineRequest } from '../api/debug';
import { StackedBar } from '../charts/stacked_bar';
import { Empty, Facts, Panel } from '../ui/panel';
import { percent, seconds, whole } from '../ui/format';
import { Gantt } from './gantt';
import { length, phaseInfo, unexplained, untilFirst } from './phases';

function facts(request: TimelineRequest) {
  const decode = request.first_token !== null && request.end !== null ? request.end - request.first_token : null;
  const each = decode !== null && request.completion_tokens > 1 ? decode / (request.completion_tokens - 1) : null;
  return [
    { label: 'State', help: 'waiting, running, or how it ended.', value: request.finish ?? request.state },
    { label: 'Time to first token', help: 'From the complete request on the socket’s thread to the first token on the thread that writes the answer.', value: request.ttft === null ? 'not yet' : seconds(request.ttft) },
    { label: 'Whole request', help: 'From arrival to end.', value: request.end === null ? 'not yet' : seconds(request.end - request.arrival) },
    { label: 'Time per token', help: 'From the first token to the end, divided by the tokens behind the first.', value: each === null ? '–' : seconds(each) },
    { label: 'Prompt', help: 'Prompt tokens; of them found in the prefix cache, and run again to rebuild windows.', value: `${whole(request.prompt_tokens)} tokens, ${whole(request.cached_tokens)} cached, ${whole(request.replayed_tokens)} replayed` },
    { label: 'Answer', help: 'Tokens generated, all choices.', value: `${whole(request.completion_tokens)} tokens` },
    { label: 'Preemptions', help: 'How often it gave its pages up for others.', value: whole(request.preemptions) },
    { label: 'Request id', help: 'The x-request-id that the client sent, or that the server made.', value: request.x_request_id || '–' },
  ];
}

/** From the first that began to the last that has ended. */
function range(timeline: Timeline): [number, number] {
  const begins = timeline.requests.map((r) => r.arrival);
  const ends = timeline.requests.map((r) => r.end ?? timeline.now);
  return [Math.min(...begins), Math.max(...ends)];
}

export function Detail({ timeline }: { timeline: Timeline }) {
  const [begin, end] = range(timeline);
  return (
    <>
      {timeline.requests.map((request) => {
        const rest = unexplained(request);
        const phases = untilFirst(request);
        return (
          <div class="panels two" key={request.request}>
            <Panel title="Time to first token" help="The phases follow each other without a gap, so that their lengths add up to the time to first token.">
              {phases.length === 0 ? (
                <Empty>No phase has ended yet.</Empty>
              ) : (
                <StackedBar label="Phases up to the first token" format={seconds} parts={phases.map((p) => ({ name: phaseInfo(p.name).title, help: phaseInfo(p.name).help, color: phaseInfo(p.name).color, value: length(p) }))} />
              )}
              {rest !== null && Math.abs(rest) > 0.02 && <p class="notice">{percent(Math.abs(rest))} of the time to first token lies {rest > 0 ? 'outside' : 'twice in'} these phases.</p>}
            </Panel>
            <Panel title={request.id || `Request ${request.request}`} help="What the server counted of this request.">
              <Facts facts={facts(request)} />
            </Panel>
          </div>
        );
      })}
      <section class="panel wide" aria-label="Timeline">
        <header>
          <h2>Timeline</h2>
          <p class="hint">Times count from the arrival of the request. Engine and device are shared with other requests.</p>
        </header>
        {timeline.truncated && <p class="notice">Older spans of this request have been overwritten; its phases are complete.</p>}
        {timeline.spans.length === 0 ? <Empty>No spans were kept.</Empty> : <Gantt spans={timeline.spans} begin={begin} end={end} origin={begin} />}
      </section>
    </>
  );
}
