// The figures that are read first.

import { mean, quantile } from '../metrics/histogram';
import { increase, rate, ratio } from '../metrics/history';
import { Term } from '../ui/help';
import { count, kNone, percent, seconds, whole } from '../ui/format';
import { deviceShares, latencyIn, quantileText, type Headline, type Latency } from './figures';

interface Tile {
  label: string;
  help: string;
  /** undefined: not reported. */
  value: string | undefined;
  unit?: string;
  note?: string;
}

function latencyTile(head: Headline, which: Latency, label: string, help: string): Tile {
  const h = latencyIn(head, which);
  if (h === undefined) return { label, help, value: undefined };
  const p50 = quantileText(quantile(h, 0.5));
  return { label, help, value: p50 ?? kNone, note: p50 === undefined ? 'none in the last minute' : `p99 ${quantileText(quantile(h, 0.99))} \nmean ${seconds(mean(h))}` };
}

function throughputTiles({ near, to }: Headline): Tile[] {
  const generated = rate(near, to, 'vllm:generation_tokens_total');
  const prompt = rate(near, to, 'vllm:prompt_tokens_total');
  const cached = ratio(near, to, 'vllm:prompt_tokens_cached_total', 'vllm:prompt_tokens_total');
  const running = to.scrape.value('vllm:num_requests_running');
  const waiting = to.scrape.value('vllm:num_requests_waiting');
  const each = generated !== undefined && running !== undefined && running > 0 ? generated / running : undefined;
  return [
    {
      label: 'Output', unit: 'tok/s', value: generated === undefined ? undefined : count(generated),
      help: 'Tokens generated a second over all requests, mean of the last 5 s. Below: the same for each request that runs now.',
      note: each === undefined ? 'nothing runs' : `${count(each)} tok/s per request`,
    },
    {
      label: 'Prompt', unit: 'tok/s', value: prompt === undefined ? undefined : count(prompt),
      help: 'Prompt tokens of requests that began, a second, mean of the last 5 s. Tokens found in the prefix cache count, too.',
      note: cached === undefined ? 'none begun' : `${percent(cached)} from the cache`,
    },
    {
      label: 'Requests', value: running === undefined ? undefined : whole(running), unit: 'running',
      help: 'Requests that are being generated now. Below: those that wait for a place in the batch or for KV pages.',
      note: waiting === undefined ? undefined : `${whole(waiting)} waiting`,
    },
  ];
}

function machineTiles({ from, near, to }: Headline): Tile[] {
  const pages = to.scrape.value('deepinfer:kv_pages');
  const used = to.scrape.value('vllm:kv_cache_usage_perc');
  const hit = ratio(from, to, 'vllm:prefix_cache_hits_total', 'vllm:prefix_cache_queries_total');
  const queried = increase(from, to, 'vllm:prefix_cache_queries_total');
  const drafts = increase(from, to, 'vllm:spec_decode_num_drafts_total');
  const accepted = increase(from, to, 'vllm:spec_decode_num_accepted_tokens_total');
  const acceptance = ratio(from, to, 'vllm:spec_decode_num_accepted_tokens_total', 'vllm:spec_decode_num_draft_tokens_total');
  const { busy, idle } = deviceShares(near, to);
  return [
    {
      label: 'KV pages held', value: used === undefined ? undefined : percent(used),
      help: 'Part of the KV pages that running requests hold. Pages that only the prefix cache keeps are not counted: they make room when needed.',
      note: pages === undefined || used === undefined ? undefined : `${count(used * pages)} of ${count(pages)}`,
    },
    {
      label: 'Prefix hits', value: queried === undefined ? undefined : percent(hit),
      help: 'Of the prompt tokens looked up in the last minute, the part found in the prefix cache. They need no prefill.',
      note: queried === undefined || queried === 0 ? 'no prompts in the last minute' : `of ${count(queried)} tokens`,
    },
    {
      label: 'Drafts accepted', value: drafts === undefined ? undefined : percent(acceptance),
      help: 'Speculation: of the draft tokens verified in the last minute, the part accepted. Below: tokens accepted a draft.',
      note: drafts === undefined ? undefined : drafts === 0 ? 'no drafts in the last minute' : `${count((accepted ?? 0) / drafts)} a draft`,
    },
    {
      label: 'Device busy', value: busy === undefined ? undefined : percent(busy),
      help: 'Part of the last 5 s in which the device ran steps. Below: the part in which it waited for the host although requests were running.',
      note: idle === undefined ? 'idle not reported' : `${percent(idle)} waiting for the host`,
    },
  ];
}

export function Tiles({ head }: { head: Headline | undefined }) {
  if (head === undefined) return <p class="empty">Two scrapes are needed for the first figures…</p>;
  const [output, prompt, requests] = throughputTiles(head);
  const tiles = [
    output!, prompt!, requests!,
    latencyTile(head, 'ttft', 'First token', 'Time to first token: from a request’s arrival to its first token. Median of the last minute, from the buckets of the histogram; “<” means the lowest bucket.'),
    latencyTile(head, 'itl', 'Between tokens', 'Inter-token latency: between two tokens of an answer. Median of the last minute, from the buckets of the histogram; “<” means the lowest bucket, then the mean says more.'),
    latencyTile(head, 'e2e', 'Whole request', 'End-to-end latency: from a request’s arrival to its end. Median of the last minute, from the buckets of the histogram.'),
    ...machineTiles(head),
  ];
  return (
    <ul class="tiles" aria-label="Key figures">
      {tiles.map((tile) => (
        <li key={tile.label}>
          <Term help={tile.help}>{tile.label}</Term>
          {tile.value === undefined ? (
            <p class="missing">not reported</p>
          ) : (
            <p class="value">
              {tile.value} {tile.unit !== undefined && <span>{tile.unit}</span>}
            </p>
          )}
          <p class="note">{tile.note ?? ''}</p>
        </li>
      ))}
    </ul>
  );
}
