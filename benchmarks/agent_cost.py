"""What the agent costs a node with eight fake GPUs: memory of the agent and all its readers, and processor time.

Processor time is taken from /proc over two minutes with a reading every 10 s and a scrape every 15 s. What the fake
driver computes is in it, what a real driver does in the kernel is not. ``--python`` names the interpreter of another
environment, into which only a wheel of nodevet is installed: development packages cost memory. Where the peer
nvitop-exporter is in the PATH, it reads the same fake GPUs beside.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import psutil
from harness import Figure, Options, main
from peers import nvitop_exporter, series_of
from peers import page as page_at

from fakes.nvml.build import build_fake_nvml  # isort: skip - harness makes it importable
from fakes.nvml.scenario import FakeNvml
from fakes.running_agent import RunningAgent

INTERVAL_SECONDS = 10.0
SCRAPE_SECONDS = 15.0
WALL_SECONDS = 120.0
SCRAPES = 1000
MEMORY_BUDGET_MIB = 54.0
PROCESSOR_BUDGET_PERCENT = 0.2
SERIES_BUDGET = 140 + 8 * 40


class Cost(msgspec.Struct, frozen=True):
    """What a set of processes costs.

    ``pss_mib`` is what the kernel says, which shares files with every other process of the machine; ``alone_mib``
    counts them as if no other process mapped them. ``percent`` is of one core.
    """

    pss_mib: float
    alone_mib: float
    percent: float
    series: int


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = FakeNvml(folder / "machine", build_fake_nvml(folder / "library"))
        installed = RunningAgent(
            folder, '[load]\nprobe = "off"\n', environment=machine.environment, interval_seconds=INTERVAL_SECONDS
        )
        installed.python = options.python
        with installed as agent:
            agent.wait_for_verdict("ok")
            assert agent.process is not None
            yield from _figures(
                "agent and readers", _cost(agent.process.pid, f"{agent.url}/metrics", options), held=True
            )
        with nvitop_exporter(machine.environment, INTERVAL_SECONDS) as peer:
            if peer is not None:
                yield from _figures("beside: nvitop-exporter", _cost(peer.pid, peer.url, options), held=False)


def _figures(who: str, cost: Cost, *, held: bool) -> Iterator[Figure]:
    """Yield the figures of *cost*, with the budgets where they are *held* to them."""
    memory = MEMORY_BUDGET_MIB if held else None
    yield Figure(what=f"{who}: PSS together", value=cost.pss_mib, unit="MiB")
    yield Figure(what=f"{who}: the same, alone on a node", value=cost.alone_mib, unit="MiB", budget=memory)
    processor = PROCESSOR_BUDGET_PERCENT if held else None
    yield Figure(what=f"{who}: of one core", value=cost.percent, unit="%", budget=processor)
    yield Figure(what=f"{who}: series", value=cost.series, unit="series", budget=SERIES_BUDGET if held else None)


def _cost(pid: int, url: str, options: Options) -> Cost:
    """Return what the process *pid* with all its children costs after *url* was scraped a thousand times."""
    for _ in range(20 if options.quick else SCRAPES):
        text = page_at(url)
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    pids = [process.pid for process in processes]
    before, began = _processor_seconds(pids), time.monotonic()
    end = began + (2.0 if options.quick else WALL_SECONDS)
    while time.monotonic() < end:
        time.sleep(min(SCRAPE_SECONDS, max(0.0, end - time.monotonic())))
        page_at(url)
    spent, passed = _processor_seconds(pids) - before, time.monotonic() - began
    return Cost(
        pss_mib=sum(_rollup(each) for each in pids) / 1024,
        alone_mib=_alone_kib(pids) / 1024,
        percent=100 * spent / passed,
        series=series_of(text),
    )


def _processor_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of *pids* and of their children that ended, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def _rollup(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _alone_kib(pids: Iterable[int]) -> int:
    """Return the memory that *pids* would take without other processes that map the same files.

    Anonymous memory is added up; of each mapped file counts the most that one of them holds.
    """
    anonymous = 0
    files: dict[str, dict[int, int]] = defaultdict(dict)
    for pid in pids:
        for mapping in psutil.Process(pid).memory_maps(grouped=False):
            anonymous += mapping.anonymous
            if mapping.path.startswith("/"):
                files[mapping.path][pid] = files[mapping.path].get(pid, 0) + mapping.rss - mapping.anonymous
    return (anonymous + sum(max(held.values()) for held in files.values())) // 1024


if __name__ == "__main__":
    main("agent_cost", lambda options: list(measure(options)))
