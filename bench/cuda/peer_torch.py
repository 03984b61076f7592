"""What torch reaches on the same device: the ceilings of the CUDA benchmarks, and the operators of cuda_ops_bench at the same shapes. One
JSON line each. torch has none of the packed formats but FP8: its weights, keys and tables are bf16, two to four times the bytes, and
keys of attention are gathered before the clock starts, which cuda_ops_bench does inside. --parts leaves out what is not wanted."""

import argparse
import json
import statistics
import sys

import torch


def timed(fn, repeats=20):
    for _ in range(3):
        fn()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        fn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def line(name, value, unit, conditions):
    conditions = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, **conditions}
    print(json.dumps({"name": name, "value": value, "unit": unit, "ceiling": None, "fraction": None, "conditions": conditions}))


def ceilings():
    n = 8192
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    us = timed(lambda: torch.matmul(a, b))
    tflops = 2 * n**3 / us * 1e-6
    line("torch_matmul_peak", tflops, "TFLOP/s", {"shape": f"{n}x{n}x{n}", "dtype": "bf16"})
    big = torch.empty(4 << 30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(big)
    us = timed(lambda: other.copy_(big), 10)
    line("torch_copy", 2 * big.numel() / us * 1e-3, "GB/s", {"bytes": "read and written"})
    return tflops


def dense():
    one = torch.ones((), device="cuda")
    for out, k in [(1280, 5120), (32768, 1280), (5120, 8192), (25600, 6144), (2304, 5120)]:
        copies = max(1, (1 << 30) // (2 * out * k))
        weights = [torch.randn(k, out, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for rows in [1, 8, 32, 128, 512, 4096]:
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            turn = iter(range(1 << 30))
            us = timed(lambda: torch.matmul(x, weights[next(turn) % copies]))
            line("torch_matmul", us, "us", {"shape": f"{out}x{k}", "rows": str(rows), "dtype": "bf16"})
        # FP8 with one scale for a whole matrix: what the library offers, less than the model's scale for every 32 columns.
        eights = [w.t().contiguous().to(torch.float8_e4m3fn) for w in weights]
        for rows in [128, 512, 4096]:
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            turn = iter(range(1 << 30))
            us = timed(lambda: torch._scaled_mm(x, eights[next(turn) % copies].t(), one, one, out_dtype=torch.bfloat16))
            line("torch_scaled_mm", us, "us", {"shape": f"{out}x{k}", "rows": str(rows), "dtype": "fp8"})


def experts():
    """Grouped products of rows that are sorted by expert already: gate and up in one, SwiGLU, down."""
    count, topk, hidden, inner = 384, 6, 5120, 2304
    first = torch.randn(count, hidden, 2 * inner, device="cuda", dtype=torch.bfloat16)
    second = torch.randn(count, inner, hidden, device="cuda", dtype=torch.bfloat16)
    for rows in [1, 8, 32, 128, 512, 1024, 2048, 4096]:
        chosen = torch.stack([torch.randperm(count, device="cuda")[:topk] for _ in range(rows)]).flatten()
        ends = torch.cumsum(torch.bincount(chosen, minlength=count), 0).to(torch.int32)
        x = torch.randn(rows * topk, hidden, device="cuda", dtype=torch.bfloat16)

        def run():
            gate, up = torch._grouped_mm(x, first, offs=ends).chunk(2, dim=-1)
            return torch._grouped_mm(torch.nn.functional.silu(gate) * up, second, offs=ends)

        line("torch_experts", timed(run, 10), "us", {"rows": str(rows), "dtype": "bf16", "call": "_grouped_mm, no shared expert"})


def attention():
    """Each query has 64 heads that share its 640 keys, which are the values, too: 64 queries of one head for torch."""
    for rows in [1, 8, 32, 128, 256, 1024]:
        q = torch.randn(rows, 1, 64, 512, device="cuda", dtype=torch.bfloat16)
        keys = torch.randn(rows, 1, 640, 512, device="cuda", dtype=torch.bfloat16)

        def run():
            p = torch.softmax(torch.matmul(q, keys.transpose(-1, -2)) * 0.04, dim=-1, dtype=torch.float32).to(torch.bfloat16)
            return torch.matmul(p, keys)

        line("torch_attention", timed(run), "us", {"rows": str(rows), "keys": "640 gathered", "dtype": "bf16"})


def index():
    """Scores of 32 heads, weighted and added, and the best 512."""
    for rows, visible in [(1, 32768), (1, 1 << 20), (32, 32768), (64, 131072)]:
        keys = torch.randn(visible, 128, device="cuda", dtype=torch.bfloat16)
        q = torch.randn(rows, 32, 128, device="cuda", dtype=torch.bfloat16)
        weights = torch.randn(rows, 1, 32, device="cuda", dtype=torch.bfloat16)

        def run():
            scores = torch.relu(torch.matmul(q, keys.t()))
            return torch.topk(torch.matmul(weights, scores).squeeze(1), 512, dim=-1).indices

        line("torch_index_select", timed(run), "us", {"rows": str(rows), "visible": str(visible), "dtype": "bf16"})


def small():
    fn = torch.randn(24, 4 * 5120, device="cuda")
    table = torch.randint(0, 255, (1 << 20, 256), device="cuda", dtype=torch.uint8)
    for rows in [1, 8, 128, 4096]:
        x = torch.randn(rows, 4 * 5120, device="cuda", dtype=torch.bfloat16)
        line("torch_hyper_mix", timed(lambda: torch.matmul(x.float(), fn.t())), "us", {"rows": str(rows), "what": "the product alone, fp32"})
        ids = torch.randint(0, 1 << 20, (rows * 24,), device="cuda")
        line("torch_engram_gather", timed(lambda: torch.index_select(table, 0, ids)), "us",
             {"rows": str(rows), "what": "bytes of 24 rows, not widened; the table in device memory"})


def main():
    parts = {"dense": dense, "experts": experts, "attention": attention, "index": index, "small": small}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(parts), help="of " + ",".join(parts))
    wanted = parser.parse_args().parts.split(",")
    tflops = ceilings()
    for name, part in parts.items():
        if name in wanted:
            try:
                part()
            except (RuntimeError, AttributeError, TypeError) as error:  # another torch
                print(f"{name}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    print(f"{tflops:.1f}", file=sys.stderr)


main()
