"""How far a temperature walks from the driver's library to the metric: through which files of ours, and no more."""

from __future__ import annotations

import selectors
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.nvml.scenario import FakeNvml
from fakes.snapshots import gpu_node
from fakes.walk import HEAT, Walk
from fakes.walk import __file__ as walker

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.daemon.ingest import Ingest
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.guard import Guard
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.view import Cadence
from nodevet.exporters.metrics.prometheus import MetricsPage

REAL_SECONDS = 20.0
MOST_FILES = 11

WAY = (
    "checks/backends/nvidia/nvml.py",
    "checks/backends/nvidia/backend.py",
    "checks/backends/sound.py",
    "checks/backends/reader_main.py",
    "checks/ipc/child_process.py",
    "agent/readers/reader.py",
    "agent/daemon/ingest.py",
    "checks/engine/engine.py",
    "exporters/metrics/quantity.py",
    "exporters/metrics/family.py",
    "exporters/metrics/encoding.py",
)
"""The files in the order of the walk; docs/explanation/architecture.md tells what each does."""

VOCABULARY = "checks/core/"
"""Declares the values and messages, says what a sound one is, and guards. Types are not counted."""

BESIDE = {
    "checks/engine/baseline.py": "asks which readings are there",
    "checks/engine/disproof.py": "looks for processes",
    "checks/engine/growth.py": "looks for counters",
    "checks/engine/lapses.py": "looks at the time",
    "checks/engine/refusal.py": "looks for failures",
}
"""Looks at each sample for something else, and hands no temperature on. So do store and curves, which are not here."""


@pytest.fixture
def walked(fake_nvml: FakeNvml, tmp_path: Path) -> set[str]:
    """The files that had a temperature in hand from a real reader on the fake library to the page."""
    fake_nvml.update({"temperature": HEAT, "memory_temperature": HEAT})
    told, clock, here = tmp_path / "files", SystemClock(), Walk()
    plan = ReaderPlan(
        backend="nvidia",
        cadences={"fast": Cadence(3600.0, REAL_SECONDS)},
        argv=(sys.executable, "-I", walker, str(told)),
        environment=fake_nvml.environment,
    )
    engine = Engine((), node="node", clock=clock.instant)
    names = ("take", "keep_sample", "keep_devices", "note", "hurry", "look", "readings_came")
    idle = cast(Any, SimpleNamespace(**dict.fromkeys(names, lambda *_, **__: None)))
    guard = Guard(pytest.fail)
    with selectors.DefaultSelector() as selector:
        supervise = lambda take: Supervisor([plan], clock, selector, take)  # noqa: E731
        ingest = Ingest(engine, idle, idle, idle, idle, guard, supervise)
        before = sys.gettrace()
        sys.settrace(here)
        try:
            end = time.monotonic() + REAL_SECONDS
            ingest.tick()
            while not (ingest.supervisor.devices and ingest.supervisor.settled):
                for key, mask in selector.select(0.1):
                    ingest.supervisor.handle(key, mask)
                ingest.tick()
                assert time.monotonic() < end, ingest.supervisor.statuses
            page = MetricsPage(guard=guard).render(engine.evaluate(gpu_node().agent).snapshot)
        finally:
            sys.settrace(before)
            ingest.stop()
            ingest.supervisor.wait(lambda: ingest.supervisor.at_rest, REAL_SECONDS)
    assert page.decode().count(f"{float(HEAT)}\n") >= 8
    return here.files | set(told.read_text().splitlines())


def test_a_temperature_walks_through_eleven_files(walked: set[str]) -> None:
    """Whoever follows one reads these. A twelfth, or one that only looks on, is put into its list here, or left out."""
    counted = {name for name in walked if not name.startswith(VOCABULARY)}
    assert counted - BESIDE.keys() == set(WAY)
    assert counted > BESIDE.keys()
    assert len(WAY) <= MOST_FILES


def test_the_page_of_the_architecture_names_each_file_of_the_walk() -> None:
    """In their order."""
    text = Path(__file__).parents[1].joinpath("docs/explanation/architecture.md").read_text()
    told = text[text.index("**A temperature**") : text.index("**An XID.**")]
    places = [told.find(f"`{name.split('/', 1)[1]}`") for name in WAY]
    assert -1 not in places
    assert places == sorted(places)
