#!/usr/bin/env python3
"""Streams of the golden long prompt, for teacher-forced tests of its choices.

  golden_long.py SHARED CHECKPOINT GOLDEN OUT.safetensors

SHARED: folder with nano/tools (the PyTorch reference; Debian python3-torch, python3-regex). GOLDEN names the prompt (long.ids);
its choices are checked to be what this run computes. OUT holds, per layer, long.Lnn.stream and .attn_out (BF16), .pre (F32).
"""
import os
import sys

import numpy as np
import torch

shared, checkpoint, golden, out = sys.argv[1:5]
sys.path.insert(0, os.path.join(shared, "nano", "tools"))
from nano_dsv41 import ckpt  # noqa: E402

torch.set_grad_enabled(False)
want = ckpt.read_safetensors(golden)
model = ckpt.load(checkpoint)
model.dtype = torch.bfloat16
ids = torch.from_numpy(want["long.ids"][1].astype(np.int64)).unsqueeze(0)
result = model(ids, trace=True)
tensors = {}
for n, t in enumerate(result.trace):
    p = f"long.L{n:02d}."
    tensors[p + "stream"] = ("BF16", ckpt.bf16_bits(t["stream"][0]))
    tensors[p + "attn_out"] = ("BF16", ckpt.bf16_bits(t["attn_out"][0]))
    tensors[p + "pre"] = ("F32", t["pre"][0].float().numpy())
    rows = want[p + "experts"][1].shape[0]
    same = np.array_equal(t["experts"][0][-rows:].numpy().astype(np.int32), want[p + "experts"][1])
    print(f"layer {n}: experts {'as in' if same else 'DIFFER from'} {os.path.basename(golden)}")
ckpt.write_safetensors(out, tensors, {"source": os.path.basename(os.path.abspath(checkpoint)), "case": "long"})
print(out, os.path.getsize(out), "bytes")
