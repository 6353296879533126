"""The agent's own probe: when it runs, on what, and when it gives way."""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from fakes.late_clock import LateClock
from fakes.snapshots import cpu_node, gpu_node

from nodevet.agent.config.settings import LoadSettings
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.load.prober import RETRY_SECONDS, Prober, phase_of_day, scheduler_here
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Device, DeviceKind, Reading, Result, ResultState, Snapshot, State
from nodevet.checks.engine.completeness import account, last_proof

PROGRAM = Path(__file__).with_name("fakes") / "scripted_load.py"
PATIENCE_SECONDS = 20.0


class Bench:
    """A prober, the loop that drives it, and the lease that it needs."""

    def __init__(self, folder: Path, behaviour: str = "finish", *, probe: str = "on", root: str = "/") -> None:
        """Run loads that behave as told, with *folder* as runtime directory."""
        self.clock = LateClock()
        self.selector = selectors.DefaultSelector()
        self.written: Snapshot | None = None
        self.guard = LoadGuard(folder, self.clock, lambda _pid: True, lambda: self.written)
        self.guard.claims.prepare()
        self.leases = self.guard.leases

        def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
            script = json.dumps(dict.fromkeys(("fp32", "bf16", "fp16"), behaviour))
            return Launch((sys.executable, "-I", str(PROGRAM), script), dict(environment))

        settings = msgspec.convert({"probe": probe}, LoadSettings)
        self.prober = Prober(settings, self.clock, self.selector, self.guard, node="n1", root=root, spawn=spawn)

    def due(self, snapshot: Snapshot) -> None:
        """Let the first probe become due, and begin it once it is announced on disk."""
        self.clock.ahead += 60
        self.prober.tick(ready(snapshot))
        self.publish(snapshot)
        self.prober.tick(ready(snapshot))

    def publish(self, snapshot: Snapshot) -> None:
        """Have the next generation on disk, as the agent's publisher does."""
        agent = msgspec.structs.replace(snapshot.agent, probing=self.guard.probing)
        self.written = msgspec.structs.replace(snapshot, generation=snapshot.generation + 1, agent=agent)

    def finish(self, snapshot: Snapshot) -> list[Result]:
        """Drive the probe to its end and return its results."""
        results: list[Result] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.prober.running and time.monotonic() < deadline:
            for key, mask in self.selector.select(0.05):
                key.data(mask)
            results += self.prober.tick(ready(snapshot))
        assert not self.prober.running
        return results


class MakeBench(Protocol):
    """Makes a bench in a folder of its own."""

    def __call__(self, behaviour: str = "finish", *, probe: str = "on", root: str = "/") -> Bench:
        """Run loads that behave as told."""
        ...


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """A function that makes benches, which are taken down after the test."""
    made: list[Bench] = []

    def make(behaviour: str = "finish", *, probe: str = "on", root: str = "/") -> Bench:
        made.append(Bench(tmp_path, behaviour, probe=probe, root=root))
        return made[-1]

    yield make
    for bench in made:
        bench.prober.stop("the test ends")
        bench.finish(cpu_node())
        bench.selector.close()


def ready(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* as of an agent whose first round is complete."""
    return msgspec.structs.replace(snapshot, agent=msgspec.structs.replace(snapshot.agent, ready=True))


def held_by(*pids: int) -> Snapshot:
    """Return the node of eight GPUs, each held by processes, or idle where none is named."""
    node = gpu_node()
    told = (Reading("compute_process_ids", ",".join(map(str, pids))), Reading("memory_used_bytes", 0))
    samples = tuple(msgspec.structs.replace(sample, readings=told) for sample in node.samples)
    return msgspec.structs.replace(node, samples=samples)


def test_an_idle_node_is_probed_under_a_lease_that_is_given_back(make_bench: MakeBench) -> None:
    """Every processor gives a finished result, and the next probe is due later."""
    bench = make_bench()
    bench.due(cpu_node())
    assert bench.prober.running
    assert bench.leases.current is not None

    results = bench.finish(cpu_node())

    assert {result.state for result in results} == {ResultState.FINISHED}
    assert bench.leases.current is None
    assert bench.prober.status == ""
    assert (bench.prober.next_deadline or 0) > bench.clock.monotonic()


def test_nothing_starts_before_the_first_round_is_complete(make_bench: MakeBench) -> None:
    """What is judged first is the node at rest."""
    bench = make_bench()
    bench.clock.ahead += 60
    node = cpu_node()
    bench.prober.tick(msgspec.structs.replace(node, agent=msgspec.structs.replace(node.agent, ready=False)))

    assert not bench.prober.running


def test_a_busy_node_is_asked_again_later(make_bench: MakeBench) -> None:
    """The status says who holds what."""
    bench = make_bench()
    bench.due(held_by(4711))

    assert not bench.prober.running
    assert "process holds it" in bench.prober.status


def test_a_probe_gives_way_to_whoever_comes(make_bench: MakeBench) -> None:
    """A process that takes a device while the probe runs ends the probe, and its results say interrupted."""
    bench = make_bench("hang")
    bench.due(held_by())
    assert bench.prober.running

    results = bench.finish(held_by(4711))

    assert {result.state for result in results} == {ResultState.INTERRUPTED}
    assert bench.leases.current is None


def test_a_lease_of_another_load_comes_first(make_bench: MakeBench) -> None:
    """While a burn-in holds the lease the probe waits."""
    bench = make_bench()
    bench.leases.take("burn-in", 1, [], 3600)
    bench.due(cpu_node())

    assert not bench.prober.running
    assert "burn-in (pid 1) holds it" in bench.prober.status


def test_without_torch_the_status_says_so(make_bench: MakeBench) -> None:
    """A refusal is told, and the probe does not come back at once."""
    bench = make_bench("no_torch")
    bench.due(cpu_node())
    bench.finish(cpu_node())

    assert bench.prober.status.startswith("no probe: ")


def test_a_simulated_node_is_never_loaded(make_bench: MakeBench) -> None:
    """There is nothing to load."""
    bench = make_bench()
    bench.due(msgspec.structs.replace(cpu_node(), simulated=True))

    assert not bench.prober.running


@pytest.mark.parametrize(
    ("file", "probe", "off"),
    [
        (None, "auto", False),
        ("etc/slurm/slurm.conf", "auto", True),
        ("var/lib/kubelet", "auto", True),
        ("etc/slurm/slurm.conf", "on", False),
        (None, "off", True),
    ],
)
def test_beside_a_scheduler_the_probe_is_off_unless_switched_on(
    tmp_path: Path, make_bench: MakeBench, file: str | None, probe: str, off: bool
) -> None:
    """`auto` looks for the files of a scheduler; `on` and `off` do as they say."""
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    bench = make_bench(probe=probe, root=str(tmp_path))
    bench.due(cpu_node())

    assert bench.prober.running is not off
    assert bool(bench.prober.status) is True
    assert (scheduler_here(str(tmp_path)) is not None) is (file is not None)


def test_a_fleet_does_not_probe_all_at_once() -> None:
    """The moments of a hundred nodes are spread over the interval, and each node keeps its own."""
    moments = [phase_of_day(f"node{number:03}", 3600) for number in range(100)]

    assert all(0 <= moment < 3600 for moment in moments)
    assert len({int(moment // 360) for moment in moments}) == 10
    assert phase_of_day("node001", 3600) == moments[1]


def with_memory(used_bytes: float, *, seconds_ago: float = 0.0) -> Snapshot:
    """Return the node of eight GPUs as it was read so long ago, with so much memory in use on each."""
    node = gpu_node()
    told = (Reading("compute_process_ids", ""), Reading("memory_used_bytes", used_bytes))
    now = SystemClock().instant()
    now = msgspec.structs.replace(now, boottime_ns=now.boottime_ns - int(seconds_ago * 1e9))
    samples = tuple(msgspec.structs.replace(sample, readings=told, time=now) for sample in node.samples)
    return msgspec.structs.replace(node, samples=samples)


def test_a_probe_begins_only_once_its_announcement_is_on_disk(make_bench: MakeBench) -> None:
    """Until then it is announced, and the state says probing although nothing runs."""
    bench = make_bench()
    bench.clock.ahead += 60
    bench.prober.tick(ready(cpu_node()))
    bench.prober.tick(ready(cpu_node()))
    assert (bench.prober.running, bench.guard.probing, bench.prober.status) == (False, True, "probe is announced")
    bench.publish(cpu_node())
    bench.prober.tick(ready(cpu_node()))
    assert bench.prober.running


def test_a_job_that_comes_before_the_listing_keeps_the_probe_away(make_bench: MakeBench) -> None:
    """It waits, says so without the name of the job, and the node is idle again."""
    bench = make_bench()
    bench.clock.ahead += 60
    bench.prober.tick(ready(cpu_node()))
    (bench.guard.claims.directory / "4711").touch()
    bench.publish(cpu_node())
    bench.prober.tick(ready(cpu_node()))
    assert not bench.prober.running
    assert not bench.guard.probing
    assert bench.prober.status.startswith("probe waits: a job claims this node")
    assert "4711" not in bench.prober.status


def test_a_probe_gives_way_to_a_job_at_once(make_bench: MakeBench) -> None:
    """Its load is told to end on the first look, and is gone within two seconds."""
    bench = make_bench("hang")
    bench.due(cpu_node())
    assert bench.prober.next_deadline is not None
    assert bench.prober.next_deadline - bench.clock.monotonic() <= 0.1
    (bench.guard.claims.directory / "4711").touch()
    began = time.monotonic()
    results = bench.finish(cpu_node())
    assert time.monotonic() - began < 3.0
    assert {result.state for result in results} == {ResultState.INTERRUPTED}
    assert "a job claims this node" in results[0].detail
    assert not bench.guard.probing


def test_idle_is_said_when_the_memory_is_seen_free(make_bench: MakeBench) -> None:
    """A reading of before the end says nothing; one that shows the memory in use keeps the lease."""
    bench = make_bench()
    old = with_memory(0, seconds_ago=100)
    bench.due(old)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while bench.prober.status.startswith("probing") and time.monotonic() < deadline:
        for key, mask in bench.selector.select(0.05):
            key.data(mask)
        bench.prober.tick(ready(old))
    bench.prober.tick(ready(old))
    assert bench.guard.probing, "nothing was read since"
    bench.prober.tick(ready(with_memory(60e9)))
    assert bench.guard.probing
    bench.prober.tick(ready(with_memory(0)))
    assert not bench.guard.probing
    assert not bench.prober.running


def test_what_a_probe_finds_to_be_wrong_is_told_once_and_before_its_end(make_bench: MakeBench, tmp_path: Path) -> None:
    """Its format may go on for long, and its child may hang then."""
    sent = tmp_path / "sent"
    bench = make_bench(f"wrong:touch:{sent}:hang")
    bench.due(cpu_node())
    told: list[Result] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    waits = True
    while waits and time.monotonic() < deadline:
        waits = not all(Path(f"{sent}-{device.id}").exists() for device in cpu_node().devices)
        for key, mask in bench.selector.select(0.05):
            key.data(mask)
        assert not bench.prober.tick(ready(cpu_node()))
        told += bench.prober.found()
    assert [result.metric("mismatches") for result in told] == [3, 3]
    assert not set(map(str, bench.prober.found())) & set(map(str, told))
    bench.prober.stop("the test ends")
    ended = bench.finish(cpu_node())
    assert {result.metric("mismatches") for result in ended} == {3}


def test_a_probe_that_is_announced_can_be_stopped(make_bench: MakeBench) -> None:
    """A burn-in, a release or the end of the agent comes first."""
    bench = make_bench()
    bench.clock.ahead += 60
    bench.prober.tick(ready(cpu_node()))
    bench.prober.stop("gives way to a burn-in")
    assert not bench.guard.probing
    bench.publish(cpu_node())
    bench.prober.tick(ready(cpu_node()))
    assert not bench.prober.running


@pytest.mark.parametrize("before", [0, 7])
def test_a_board_that_is_listed_while_a_probe_runs_is_not_proved_and_probed_soon(
    make_bench: MakeBench, before: int
) -> None:
    """The driver still loads as the agent starts: before, the processors, or seven boards, were all of the node."""
    bench, whole = make_bench(), held_by()
    boards = [device for device in whole.devices if device.kind is DeviceKind.ACCELERATOR]
    late = boards[before:]
    bench.due(msgspec.structs.replace(whole, devices=tuple(each for each in whole.devices if each not in late)))
    results = bench.finish(whole)
    proved = account((), results)
    assert proved.state is State.UNKNOWN
    assert {entry.device for entry in proved.unproven} == {each.id for each in late}
    assert last_proof(results, ()).state is State.UNKNOWN
    assert (bench.prober.next_deadline or 0) <= bench.clock.monotonic() + RETRY_SECONDS
    bench.due(whole)
    assert account((), bench.finish(whole)).state is State.OK
