"""The simulated backend in the ordinary reader child: what it tells is marked, and follows the file of the agent."""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.heard import Heard

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.daemon.assembly import FAST, SLOW
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Told
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import FailureKind, ReaderState
from nodevet.checks.engine.view import Cadence
from nodevet.checks.reference.profiles import load_profile
from nodevet.checks.simulation.node import Simulation
from nodevet.checks.simulation.scenario import parse_scenario

PATIENCE_SECONDS = 20.0
PROFILE = "mi300x-8"


class Bench:
    """A supervisor whose readers stand in for those of an MI300X node."""

    def __init__(self, directory: Path) -> None:
        """Prepare; nothing is started."""
        self.path = directory / "simulation.json"
        self.clock = SystemClock()
        self.selector = selectors.DefaultSelector()
        self.supervisor = Supervisor(
            map(self._plan, load_profile(PROFILE).backends), self.clock, self.selector, self._take
        )

    def play(self, scenario: str) -> None:
        """Write what is simulated, as the agent does."""
        simulation = Simulation(
            profile=PROFILE,
            node="bench",
            scenario=parse_scenario(scenario, "bench.toml", load_profile(PROFILE)),
            since_ns=self.clock.instant().boottime_ns,
        )
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(simulation))
        fresh.replace(self.path)

    def round(self) -> Heard:
        """Read every group of every backend once, and return what was told."""
        self._heard = Heard()
        self.supervisor.ask()
        self.supervisor.wait(lambda: self.supervisor.settled, PATIENCE_SECONDS)
        return self._heard

    def close(self) -> None:
        """End the children."""
        self.supervisor.stop()
        self.supervisor.wait(lambda: self.supervisor.at_rest, PATIENCE_SECONDS)
        self.selector.close()

    def _take(self, told: Told) -> None:
        self._heard.take(told)

    def _plan(self, backend: str) -> ReaderPlan:
        return ReaderPlan(
            backend=backend,
            cadences={FAST: Cadence(3600, 5), SLOW: Cadence(3600, 5)},
            stand_in="simulated",
            options={"simulation": str(self.path), "stands_for": backend},
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench that leaves no process behind."""
    made = Bench(tmp_path)
    yield made
    made.close()


def test_every_sample_is_marked_and_comes_from_the_backend_that_is_stood_in_for(bench: Bench) -> None:
    """So that cadences, checks and metrics treat it as theirs, and no surface as real."""
    bench.play("")
    found = bench.round()
    assert {sample.backend for sample in found.samples} == {"host", "amd"}
    assert len({(sample.device, sample.group) for sample in found.samples}) == 2 * (8 + 4)
    assert all(sample.simulated and sample.readings and sample.failure is None for sample in found.samples)
    assert {status.backend: status.versions["simulated"] for status in bench.supervisor.statuses} == {
        "host": PROFILE,
        "amd": PROFILE,
    }


def test_the_file_is_looked_at_before_every_reading(bench: Bench) -> None:
    """A device is lost and comes back without a restart of the child."""
    bench.play("")
    bench.round()
    bench.play('[[fault]]\nkind = "lost"\ndevice = 3\n')
    failures = [sample.failure for sample in bench.round().samples if sample.failure]
    assert {failure.kind for failure in failures} == {FailureKind.LOST} and len(failures) == 2
    bench.play('[[fault]]\nkind = "missing"\ndevice = [3, 4]\n')
    bench.round()
    assert len([device for device in bench.supervisor.devices if device.backend == "amd"]) == 6
    bench.play("")
    assert not [sample for sample in bench.round().samples if sample.failure]
    assert all(status.starts == 1 for status in bench.supervisor.statuses)


def test_a_simulation_that_cannot_be_read_is_a_failed_reader(bench: Bench) -> None:
    """Never a healthy node by default."""
    bench.path.write_text("{}")
    bench.supervisor.wait(
        lambda: all(status.state is ReaderState.FAILED for status in bench.supervisor.statuses), PATIENCE_SECONDS
    )
    for status in bench.supervisor.statuses:
        assert status.state is ReaderState.FAILED and "no simulation" in status.detail
    assert bench.supervisor.devices == ()
