#!/usr/bin/env python3
"""What the reference's draft module computes, for teacher-forced tests of ours.

  golden_draft.py SHARED CHECKPOINT GOLDEN OUT.safetensors

SHARED: folder with nano/tools (the PyTorch reference; Debian python3-torch, python3-regex). GOLDEN names the prompts (short.ids with
its decode steps, long.ids). Prompts run as in GOLDEN, all behind them with the attention of reference_attention.py. Per case (short, long), with n a stage counted on from the
last backbone layer: CASE.ids (all tokens that have run, then the anchor), CASE.Lxx.main_hidden of the last window of positions (xx:
the first stage), CASE.Lnn.context_kv of the same positions, CASE.Lnn.{attn_out,ffn_out,stream,pre,experts,window_kv},
CASE.draft_ids, CASE.draft_logits, CASE.draft_confidence. Of the short one also, with s the step behind token s of GOLDEN's
short.decode_ids: short.Ds.Lnn.{attn_out,ffn_out,stream,pre,experts,window_kv} (and engram_out) of every layer, and decode_logits, a row a step. All F32 or I32.
"""
import os
import sys

import numpy as np
import torch

shared, checkpoint, golden, out = sys.argv[1:5]
sys.path.insert(0, os.path.join(shared, "nano", "tools"))
from nano_dsv41 import ckpt, model as reference  # noqa: E402
from reference_attention import tiled_sink_attention  # noqa: E402

torch.set_grad_enabled(False)
whole_list_attention = reference.sink_attention
want = ckpt.read_safetensors(golden)
model = ckpt.load(checkpoint)
model.dtype = torch.bfloat16
layers, window = model.cfg.num_hidden_layers, model.cfg.sliding_window


def f32(t):
    return ("F32", t.detach().float().contiguous().numpy())


def i32(t):
    return ("I32", t.detach().to(torch.int32).contiguous().numpy())


tensors = {}
for case in ("short", "long"):
    ids = torch.from_numpy(want[f"{case}.ids"][1].astype(np.int64)).unsqueeze(0)
    cache = model.new_cache()
    reference.sink_attention = whole_list_attention
    r = model(ids, cache)
    reference.sink_attention = tiled_sink_attention
    main = [r.main_hidden]
    model.draft_extend(r.main_hidden, cache, 0)
    tokens = ids[0].tolist()
    nxt = r.logits[0, -1:].argmax(-1)
    if case == "short":
        steps = torch.from_numpy(want["short.decode_ids"][1].astype(np.int64))
        decoded = []
        for n, token in enumerate(steps[:-1]):
            tokens.append(int(token))
            r = model(token.view(1, 1), cache, trace=True)
            for layer, t in enumerate(r.trace):
                p = f"short.D{n}.L{layer:02d}."
                for k in ("attn_out", "ffn_out", "stream", "pre", "window_kv"):
                    tensors[p + k] = f32(t[k][0])
                if "engram_out" in t:
                    tensors[p + "engram_out"] = f32(t["engram_out"][0])
                tensors[p + "experts"] = i32(t["experts"][0])
            decoded.append(r.logits[0, -1])
            main.append(r.main_hidden)
            model.draft_extend(r.main_hidden, cache, cache.length - 1)
        nxt = steps[-1:]
        tensors["short.decode_logits"] = f32(torch.stack(decoded))
    tokens.append(int(nxt))
    tensors[f"{case}.ids"] = i32(torch.tensor(tokens))
    tensors[f"{case}.L{layers:02d}.main_hidden"] = f32(torch.cat(main, 1)[0, -window:])
    context = [lc.window[0, -window:].clone() for lc in cache.draft]
    trace = []
    # The block's own window rows: what attend() appends to the context.
    rows = []
    for stage in model.mtp:
        inner = stage.attn.window_kv

        def watch(x, pos, inner=inner):
            kv = inner(x, pos)
            rows.append(kv[0])
            return kv

        stage.attn.window_kv = watch
    drafts, logits, confidence = model.draft(nxt, cache, trace=trace)
    for stage in model.mtp:
        del stage.attn.window_kv
    for n, t in enumerate(trace):
        p = f"{case}.L{layers + n:02d}."
        tensors[p + "context_kv"] = f32(context[n])
        tensors[p + "window_kv"] = f32(rows[n])
        for k in ("attn_out", "ffn_out", "stream", "pre"):
            tensors[p + k] = f32(t[k][0])
        tensors[p + "experts"] = i32(t["experts"][0])
    tensors[f"{case}.draft_ids"] = i32(drafts[0])
    tensors[f"{case}.draft_logits"] = f32(logits[0])
    tensors[f"{case}.draft_confidence"] = f32(confidence[0])
ckpt.write_safetensors(out, tensors, {"source": os.path.basename(os.path.abspath(checkpoint)), "case": "draft"})
print(out, os.path.getsize(out), "bytes")
