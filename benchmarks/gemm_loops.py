"""Loops of matrix products to compare: prepared once per format, run in interleaved batches of equal counts."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from harness import Report, conditions, say, write_report

from nodevet.checks.burnin.certify import certify
from nodevet.checks.burnin.device import ComputeDevice, open_device
from nodevet.checks.burnin.flags import apply_flags
from nodevet.checks.burnin.layout import EXTRA_ROWS, Layout, lay_out
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.multiply import Multiplication, choose_multiplication
from nodevet.checks.burnin.operands import build_sets, make_sets
from nodevet.checks.burnin.rates import percentile
from nodevet.checks.burnin.ring import Checking, Ring, checking_for

__all__ = ["Bench", "arguments", "bare_loop", "checked_loop", "interleave", "open_bench", "report", "unchecked_loop"]

SEED = 7
BATCH_SECONDS = 0.05

Loop = Callable[[], Callable[[], None]]
"""Starts a batch; what it returns waits for the device."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """One format on one device, certified and ready to run: *count* products of *shape* per batch."""

    device: ComputeDevice
    multiplication: Multiplication
    shape: tuple[int, int, int]
    layout: Layout
    ring: Ring
    checking: Checking
    count: int

    def tflops(self, seconds: list[float]) -> float:
        """Return the rate of the median batch."""
        m, n, k = self.shape
        return 2 * m * n * k * self.count / statistics.median(seconds) / 1e12


def open_bench(device: ComputeDevice, dtype: str, shape: tuple[int, int, int]) -> Bench:
    """Build operands, certify them and fill the ring; ends the program where the device is not exact."""
    apply_flags(dtype)
    multiplication = choose_multiplication(dtype, device.kind, device.facts.architecture)
    m, n, k = shape
    recipes = make_sets(multiplication.data_type, m, n, k, EXTRA_ROWS, SEED, narrow=multiplication.narrow)
    sets = build_sets(recipes, multiplication.element, device.torch_device, transpose_b=multiplication.transpose_b)
    certificates = [certify(each, multiplication, m, SEED) for each in sets]
    goldens = [certificate.golden for certificate in certificates if certificate.golden is not None]
    if len(goldens) < len(sets):
        raise SystemExit(f"{dtype}: the product could not be certified: {certificates}")
    out = torch.zeros(m, n, dtype=multiplication.output, device=device.torch_device)

    def once() -> Callable[[], None]:
        multiplication.run(sets[0].a.matrix[:m], sets[0].b.matrix, out)
        return _wait(device)

    single = min(device.timed(once)[0] for _ in range(5))
    layout = lay_out(
        shape,
        multiplication.data_type,
        multiplication.output.itemsize,
        budget_bytes=device.free_bytes(),
        cache_bytes=device.cache_bytes,
        gemm_seconds=single,
        seconds=1.0,
    )
    slots = [torch.zeros_like(out) for _ in range(layout.slots)]
    checking = checking_for(device.kind, dtype)
    ring = Ring(multiplication.run, sets, goldens, slots, lag=layout.lag, seed=SEED, checking=checking)
    ring.run_unchecked(layout.slots)
    return Bench(
        device=device,
        multiplication=multiplication,
        shape=shape,
        layout=layout,
        ring=ring,
        checking=checking,
        count=max(1, min(layout.batch, int(BATCH_SECONDS / single))),
    )


def checked_loop(bench: Bench) -> Loop:
    """Return the loop that a burn-in runs; a wrong product ends the program."""

    def start() -> Callable[[], None]:
        wait = bench.ring.run_batch(bench.count)

        def finish() -> None:
            _checked, failed = wait()
            if failed:
                raise SystemExit(f"{len(failed)} products were wrong: this device cannot be benchmarked")

        return finish

    return start


def unchecked_loop(bench: Bench) -> Loop:
    """Return the same ring without checks: same operands, same slots."""

    def start() -> Callable[[], None]:
        bench.ring.run_unchecked(bench.count)
        return _wait(bench.device)

    return start


def bare_loop(bench: Bench) -> Loop:
    """Return what people time by hand: one pair of normal operands, one result, torch's product in the same format."""
    (m, n, k), element = bench.shape, bench.multiplication.element
    a, b = (torch.randn(shape, device=bench.device.torch_device) for shape in ((m, k), (k, n)))
    a, b = (each.mul(16).to(element) for each in (a, b))
    b = b.t().contiguous().t() if bench.multiplication.transpose_b else b
    out = torch.zeros(m, n, dtype=bench.multiplication.output, device=bench.device.torch_device)

    def start() -> Callable[[], None]:
        for _ in range(bench.count):
            bench.multiplication.run(a, b, out)
        return _wait(bench.device)

    return start


def interleave(bench: Bench, loops: dict[str, Loop], rounds: int) -> dict[str, list[float]]:
    """Run the loops forth and back (A B B A) *rounds* times; return two times per round and loop, in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name in (*loops, *reversed(loops)):
            seconds[name].append(bench.device.timed(loops[name])[0])
    return seconds


def report(title: str, ours: str, theirs: str) -> None:
    """Measure loop *ours* against *theirs* for every format asked for; print a table, and write JSON where asked to."""
    options = arguments(title)
    before = conditions()
    device = open_device(options.device)
    if options.threads and device.kind == "cpu":
        torch.set_num_threads(options.threads)
        device = msgspec.structs.replace(device, threads=options.threads)
    makers = {"checked": checked_loop, "unchecked": unchecked_loop, "bare": bare_loop}
    say(f"{'dtype':<10}{ours:>11}{theirs:>11}  TFLOPS   {ours} over {theirs}: median time (quartiles)")
    rows = []
    for dtype in options.dtype or ("fp32", "bf16"):
        bench = open_bench(device, dtype, (options.shape[0], options.shape[1], options.shape[2]))
        seconds = interleave(bench, {name: makers[name](bench) for name in (ours, theirs)}, options.rounds)
        row = _row(bench, seconds, ours, theirs)
        rows.append(row)
        say(
            f"{dtype:<10}{row[f'{ours}_tflops']:>11.3f}{row[f'{theirs}_tflops']:>11.3f}"
            f"{'':11}{row['median']:+.2%} ({row['low']:+.2%} .. {row['high']:+.2%})"
        )
    if options.json:
        write_report(options.json, Report(benchmark=title, quick=options.quick, conditions=before, rows=tuple(rows)))


def arguments(title: str) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--device", default="cpu-0", help="cpu-N, or anything else for the visible accelerator")
    parser.add_argument("--dtype", action="append", help="number format, may be repeated; default: fp32 bf16")
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 512, 4096), metavar=("M", "N", "K"))
    parser.add_argument("--threads", type=int, help="of a processor; one is steadier on a machine that others use")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of two batches each")
    parser.add_argument("--quick", action="store_true", help="only show that it runs; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.shape, options.dtype = 1, (64, 64, 256), ["fp32"]
    return options


def _row(bench: Bench, seconds: dict[str, list[float]], ours: str, theirs: str) -> dict[str, Any]:
    first, second = seconds[ours], seconds[theirs]
    ratios = [
        (first[index] + first[index + 1]) / (second[index] + second[index + 1]) - 1 for index in range(0, len(first), 2)
    ]
    return {
        "dtype": bench.multiplication.data_type.name,
        "shape": list(bench.shape),
        "kind": bench.device.kind,
        "device": bench.device.facts.name,
        "threads": bench.device.threads,
        "torch": str(torch.__version__),
        "checking": bench.checking.value,
        "slots": bench.layout.slots,
        "lag_covers_cache": bench.layout.covers_cache,
        "gemms_per_batch": bench.count,
        "rounds": len(ratios),
        f"{ours}_tflops": bench.tflops(first),
        f"{theirs}_tflops": bench.tflops(second),
        "median": statistics.median(ratios),
        "low": percentile(ratios, 0.25),
        "high": percentile(ratios, 0.75),
    }


def _wait(device: ComputeDevice) -> Callable[[], None]:
    return (lambda: None) if device.kind == "cpu" else torch.cuda.synchronize
