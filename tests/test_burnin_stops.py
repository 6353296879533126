"""Time in which a load is stopped, as SLURM suspends a job, is no time of load."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.burnin import NO_TORCH  # skips this file where torch is not installed
from fakes.ended import ended

from nodevet.checks.burnin.device import ComputeDevice, open_device
from nodevet.checks.burnin.layout import Layout
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.peak import DeviceFacts
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.burnin.rates import believed, usual
from nodevet.checks.burnin.stops import STOPPED_SECONDS, Stops
from nodevet.checks.burnin.workload import Run, measure
from nodevet.checks.core.clock import SystemClock

WATCHED = """
import time
from nodevet.checks.burnin.stops import Stops
with Stops() as stops:
    print("ready", flush=True)
    while not (lost := stops.seconds):
        time.sleep(0.05)
    print(lost, flush=True)
"""


@pytest.mark.parametrize(("gap", "lost"), [(1.0, 0.0), (STOPPED_SECONDS, 0.0), (30.0, 60.0)])
def test_only_what_is_longer_than_a_wait_for_a_processor_is_a_stop(gap: float, lost: float) -> None:
    """And each of them counts once."""
    assert NO_TORCH
    moments = iter([0.0, gap, gap + 1.0, 2 * gap + 1.0, 2 * gap + 2.0])
    stops = Stops(lambda: next(moments))
    assert [stops.seconds for _ in range(4)][-1] == lost


def test_a_process_that_was_stopped_knows_it() -> None:
    """By SIGSTOP, as `scontrol suspend` does."""
    with ended(subprocess.Popen([sys.executable, "-I", "-c", WATCHED], stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS + 1.0)
        process.send_signal(signal.SIGCONT)
        assert STOPPED_SECONDS < float(process.stdout.readline()) < STOPPED_SECONDS + 10.0


@pytest.mark.parametrize("first", [0, 3])
def test_a_stop_is_no_time_of_load(first: int) -> None:
    """A load of sixty seconds runs for sixty, whenever it is suspended for an hour; its rate is that of the others."""
    batches, stops = [0], SimpleNamespace(seconds=0.0)

    def timed(start: Callable[[], Any], _meanwhile: Callable[[], None]) -> tuple[float, Any]:
        batches[0] += 1
        is_stopped = batches[0] - 1 == first
        stops.seconds += 3600.0 * is_stopped
        return 1.0 + 3600.0 * is_stopped, start()

    nothing: Any = SimpleNamespace(run_batch=lambda _count: ([], []), drain=lambda: ([], []))
    control: Any = SimpleNamespace(pause=lambda: None, tick=lambda *_: None)
    run = Run(GemmRequest(device="cpu-0", dtype="fp32", seconds=60.0), SystemClock())
    layout = Layout(shape=(128, 128, 128), slots=1, lag=0, batch=1, bytes=0, covers_cache=True)
    device: Any = SimpleNamespace(timed=timed, clock_hertz=lambda: None)
    watch: Any = stops
    measure(run, control, device, nothing, layout, lambda *_: None, watch)
    assert 60 <= batches[0] <= 61
    assert max(run.batch_seconds) == 1.0


def test_a_batch_that_was_stopped_counts_as_the_others_do() -> None:
    """The first one counts as next to nothing, and none as longer than it took."""
    assert usual([1.0, 2.0, 9.0], 70.0) == 2.0
    assert usual([], 70.0) < 1.0
    assert usual([3.0], 2.0) == 2.0


@pytest.mark.parametrize("told", [200.0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_timer_of_the_device_is_not_believed_beyond_what_passed(told: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is the suspect: with a timer that is a hundred times too fast, six seconds were ten minutes."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _end: told * 1e3)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    facts = DeviceFacts(vendor="nvidia", architecture="sm90", name="any")
    device = ComputeDevice(kind="cuda", torch_device=torch.device("cpu"), facts=facts, cache_bytes=None)
    seconds, outcome = device.timed(lambda: lambda: "done")
    assert outcome == "done"
    assert 0 < seconds < 100.0


def test_what_happens_meanwhile_is_no_time_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is read behind the end of the batch on the device's own timer, while it works."""
    order: list[str] = []
    event = SimpleNamespace(
        record=lambda: order.append("mark"), synchronize=lambda: None, elapsed_time=lambda _end: 1.0
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    facts = DeviceFacts(vendor="nvidia", architecture="sm90", name="any")
    device = ComputeDevice(kind="cuda", torch_device=torch.device("cpu"), facts=facts, cache_bytes=None)
    device.timed(lambda: lambda: order.append("waited"), lambda: order.append("read"))
    assert order == ["mark", "mark", "read", "waited"]


@pytest.mark.parametrize(
    ("told", "hertz"), [(1755, 1.755e9), (0, None), (-1, None), (RuntimeError("driver"), None), (KeyError("x"), None)]
)
def test_a_clock_that_the_library_cannot_tell_ends_no_load(
    told: float | Exception, hertz: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of any class of the vendor's library, and a zero, are no clock."""

    def clock_rate() -> float:
        if isinstance(told, Exception):
            raise told
        return told

    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, clock_rate=1_980_000
    )
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch.cuda, "clock_rate", clock_rate)
    device = open_device("GPU-1", "10de:2330")
    assert device.clock_hertz() == hertz
    monkeypatch.delattr(torch.cuda, "clock_rate")
    assert device.clock_hertz() is None


def test_a_timer_of_the_device_is_believed_within_what_passed() -> None:
    """Its time is that of the load alone."""
    assert believed(0.5, 0.6) == 0.5
    assert believed(0.7, 0.6) == 0.6
