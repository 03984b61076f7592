"""What torch reaches on the same device: the ceilings of the CUDA benchmarks, and bf16 and FP8 products of the same shapes. One JSON line each."""

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


def main():
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
    del big, other
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
    print(f"{tflops:.1f}", file=sys.stderr)


main()
