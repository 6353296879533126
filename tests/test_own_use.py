"""What the agent tells of its own process: memory, processor time, descriptors and threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import psutil
import pytest
from fakes.running_agent import RunningAgent
from fakes.snapshots import gpu_node
from prometheus_client.parser import text_string_to_metric_families

from nodevet.agent.daemon.own_use import OwnUseReader
from nodevet.checks.core.model import OwnUse
from nodevet.exporters.metrics.prometheus import MetricsPage

FIELDS = OwnUse.__struct_fields__

SERIES_OF = {
    "resident_bytes": "nodevet_agent_resident_memory_bytes",
    "proportional_bytes": "nodevet_agent_proportional_memory_bytes",
    "cpu_seconds": "nodevet_agent_cpu_seconds_total",
    "open_descriptors": "nodevet_agent_open_file_descriptors",
    "threads": "nodevet_agent_threads",
}
SERIES = frozenset(SERIES_OF.values())


def look(attach: Callable[[], psutil.Process] = psutil.Process) -> OwnUse:
    """What one look finds."""
    reader = OwnUseReader(attach)
    reader.before_judging()
    return reader.last


def test_what_is_told_is_what_the_kernel_counts() -> None:
    """Against the files of /proc and the clocks of the kernel, read without psutil."""
    used = look()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    times = os.times()

    assert used.resident_bytes == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.1)
    assert used.proportional_bytes is not None
    assert used.resident_bytes is not None
    assert 0 < used.proportional_bytes <= used.resident_bytes * 1.1
    assert used.cpu_seconds == pytest.approx(times.user + times.system, abs=0.5)
    assert used.threads == len([*Path("/proc/self/task").iterdir()])


def test_the_time_in_the_kernel_counts() -> None:
    """An agent that reads files all day spends most of its time there."""
    before = os.times()
    while os.times().system - before.system < 0.1:
        Path("/proc/self/maps").read_bytes()
    used, after = look(), os.times()
    assert used.cpu_seconds == pytest.approx(after.user + after.system, abs=0.05)


def test_a_descriptor_more_is_one_more() -> None:
    """The count is of descriptors of all kinds, not of files alone."""
    before = look().open_descriptors
    ends = os.pipe()
    try:
        after = look().open_descriptors
    finally:
        for end in ends:
            os.close(end)
    assert before is not None
    assert after == before + 2


CALLS = {
    "memory_info": ("resident_bytes",),
    "memory_full_info": ("proportional_bytes",),
    "cpu_times": ("cpu_seconds",),
    "num_fds": ("open_descriptors",),
    "num_threads": ("threads",),
}
"""Functions of psutil, and what is not known where one fails."""


class Failing:
    """This process, of which one question ends in an error."""

    def __init__(self, call: str, error: Exception) -> None:
        """Raise *error* where *call* is called."""
        self._process = psutil.Process()
        self._call = call
        self._error = error

    def __getattr__(self, name: str) -> object:
        """What psutil has."""
        return self._fail if name == self._call else getattr(self._process, name)

    def _fail(self) -> None:
        raise self._error


ERRORS = [psutil.AccessDenied(1), OSError(24, "Too many open files"), ValueError("odd"), IndexError("odd")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_read_costs_itself(call: str, error: Exception) -> None:
    """The other values are told: a process out of descriptors has its processor time."""
    used = look(lambda: cast("psutil.Process", Failing(call, error)))
    assert [name for name in FIELDS if getattr(used, name) is None] == [*CALLS[call]]


def test_a_process_that_cannot_be_looked_at_costs_these_values_alone() -> None:
    """As where /proc is not mounted: nothing is known, nothing is raised, and nothing of an earlier look is kept."""
    reader = OwnUseReader(lambda: psutil.Process(dead[0]) if dead else psutil.Process())
    dead: list[int] = []
    reader.before_judging()
    assert None not in msgspec.structs.astuple(reader.last)
    dead.append(2**22 + 1)  # more than any kernel.pid_max
    reader.before_judging()
    assert reader.last == OwnUse()


def test_the_proportional_memory_is_read_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel walks all pages for it; the other values are read for each judgement."""
    whole, walks, now = psutil.Process.memory_full_info, list[float](), [0.0]

    def counted(process: psutil.Process) -> object:
        walks.append(now[0])
        return whole(process)

    monkeypatch.setattr(psutil.Process, "memory_full_info", counted)
    reader = OwnUseReader(monotonic=lambda: now[0])
    for now[0] in (0.0, 10.0, 59.0, 60.0, 70.0, 120.0):
        reader.before_judging()
        assert None not in msgspec.structs.astuple(reader.last)
    assert walks == [0.0, 60.0, 120.0]


def test_a_share_that_no_kernel_tells_is_asked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without it walks the pages all the same."""
    whole, walks = psutil.Process.memory_full_info, list[int]()

    def without(process: psutil.Process) -> object:
        walks.append(process.pid)
        return whole(process)._replace(pss=0)

    monkeypatch.setattr(psutil.Process, "memory_full_info", without)
    reader = OwnUseReader(monotonic=lambda: 1.0)
    for _ in range(3):
        reader.before_judging()
    assert (reader.last.proportional_bytes, len(walks)) == (None, 1)


def test_a_kernel_that_tells_no_share_is_not_taken_for_one_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil adds up what it finds, which is nothing."""
    whole = psutil.Process.memory_full_info
    monkeypatch.setattr(psutil.Process, "memory_full_info", lambda process: whole(process)._replace(pss=0))
    assert look().proportional_bytes is None


def test_it_is_read_once_for_each_judgement_and_not_by_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the service tells is what was read before."""
    looks: list[psutil.Process] = []
    whole = psutil.Process.num_fds

    def counted(process: psutil.Process) -> object:
        looks.append(process)
        return whole(process)

    monkeypatch.setattr(psutil.Process, "num_fds", counted)
    service, info = OwnUseReader(), gpu_node().agent
    service.before_judging()
    facts = [service.describe(info).own_use for _ in range(3)]
    assert len(looks) == 1
    assert facts[0] == facts[2] != OwnUse()


def test_values_that_are_not_known_are_no_series() -> None:
    """A dashboard sees a gap and no zero."""
    whole = gpu_node()
    for name in FIELDS:
        lacking = msgspec.structs.replace(whole.agent.own_use, **{name: None})
        agent = msgspec.structs.replace(whole.agent, own_use=lacking)
        page = MetricsPage().render(msgspec.structs.replace(whole, agent=agent)).decode()
        found = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
        assert SERIES - found == {SERIES_OF[name]}


CONFIGURATION = '[agent]\ninterval_seconds = 0.5\n[agent.backends]\nenabled = ["host"]\n[kernel_log]\nenabled = false\n'


def test_a_running_agent_tells_what_it_takes(tmp_path: Path) -> None:
    """The page of a real agent has what psutil tells from outside about its process, and not about its readers."""
    with RunningAgent(tmp_path, CONFIGURATION) as agent:
        agent.wait_for_verdict("ok")
        page = agent.get("/metrics")
        assert agent.process is not None
        process = psutil.Process(agent.process.pid)
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name in SERIES
        }
        assert found.keys() == SERIES
        assert found["nodevet_agent_resident_memory_bytes"] == pytest.approx(process.memory_info().rss, rel=0.2)
        assert found["nodevet_agent_threads"] == pytest.approx(process.num_threads(), abs=4)
        assert found["nodevet_agent_open_file_descriptors"] == pytest.approx(process.num_fds(), abs=8)
