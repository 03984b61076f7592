"""The attention of the PyTorch reference as DeepSeek's kernel goes through a list (spec/backbone.md 3.10): tiles of 64 entries,
probabilities rounded relative to the largest score so far. Empty slots come last, as if a list had none.

The reference rounds probabilities relative to the largest score of the whole list. Both are right, but where a list is longer than
a tile they differ by roundings, which grow through the depth: logits of wide's decode step 6 by 0.21 (relative L2).
"""
import torch

TILE = 64


def tiled_sink_attention(q, kv, idx, sink):
    """q [B,S,H,C]; kv [B,T,C] key and value of every head; idx [B,S,K] rows of kv, -1 = none; sink [H]. Returns [B,S,H,C]."""
    batch, rows, heads, dim = q.shape
    idx = idx.gather(-1, (idx < 0).to(torch.int8).sort(dim=-1, stable=True).indices)
    entries = torch.gather(kv.float().unsqueeze(1).expand(batch, rows, -1, dim), 2,
                           idx.clamp_min(0).unsqueeze(-1).expand(-1, -1, -1, dim))
    scores = torch.einsum("bshc,bskc->bshk", q.float(), entries) * dim**-0.5
    scores = scores.masked_fill((idx < 0).unsqueeze(2), -torch.inf)
    largest = torch.full_like(scores[..., :1], -1e30)
    total = torch.zeros_like(largest)
    out = torch.zeros(batch, rows, heads, dim)
    for first in range(0, scores.shape[-1], TILE):
        tile = slice(first, first + TILE)
        above = torch.maximum(largest, scores[..., tile].amax(-1, keepdim=True))
        fade = torch.exp(largest - above)
        p = torch.exp(scores[..., tile] - above)
        total = total * fade + p.sum(-1, keepdim=True)
        out = out * fade + torch.einsum("bshk,bskc->bshc", p.to(q.dtype).float(), entries[:, :, tile])
        largest = above
    return (out / (total + torch.exp(sink.view(1, 1, heads, 1) - largest))).to(q.dtype)
