"""The agent's writer on a real SLURM: it drains for hard faults, and a person always outranks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.gpu_node import GpuNode, pci
from fakes.running_agent import RunningAgent
from fakes.scontrol import BREAKAGES, SwitchedScontrol
from fakes.slurm_cluster import SlurmCluster
from fakes.small_disk import fill

SETTINGS = """
[slurm]
writer = "{writer}"
node_name = "{node}"
conf = "{conf}"
scontrol = "{scontrol}"
poll_seconds = 1
timeout_seconds = 1
maximum_drained_ratio = {ratio}
maximum_new_ratio = 1.0
"""

HUMAN = "ops: replace fan"
SECONDS = 20.0

STOP_SECONDS = 2.0
"""What SIGTERM has, whatever hangs."""

BUSY_SECONDS = 1.0
"""What a busy machine may add."""

MakeNode = Callable[..., "Vetted"]


class Vetted(GpuNode):
    """An agent that writes for one node of the cluster through a scontrol that the test can break."""

    def __init__(self, directory: Path, library: Path, slurm: SlurmCluster, name: str, **changes: Any) -> None:
        """Write its configuration; *changes* are settings of the writer."""
        directory.mkdir()
        self.name = name
        self.slurm = slurm
        self.scontrol = SwitchedScontrol(directory / "bin")
        values = {"writer": "drain", "ratio": 1.0, **changes}
        more = SETTINGS.format(node=name, conf=slurm.configuration, scontrol=self.scontrol.program, **values)
        super().__init__(directory, library, more=more)

    def spoil_memory(self, slot: int = 0) -> None:
        """Let a GPU count an uncorrected memory error."""
        self.machine.set(f"ecc_uncorrected_volatile_dram.{slot}", 1)

    def lose(self, slot: int = 0) -> None:
        """Let a GPU fall off the bus."""
        self.log_kernel(
            f"NVRM: Xid (PCI:{pci(slot)[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        )

    def shows(self) -> tuple[str, str, str, str]:
        """Return state, user, time and reason as SLURM shows them."""
        row = self.slurm.run("sinfo", "-h", "-n", self.name, "-o", "%T|%u|%H|%E").strip()
        state, user, when, reason = row.split("|", 3)
        return state, user, when, reason

    @property
    def changes(self) -> list[str]:
        """Return what it wrote, but for taking marks back: after a resume that of the drain goes."""
        return [call for call in self.scontrol.writes if not call.endswith(" Comment=")]

    def skipped(self, why: str) -> float:
        """Return how often a drain was not written because of *why*."""
        return self.metric("nodevet_slurm_write_skipped_total", reason=why) or 0.0

    def until(self, happens: Callable[[], object], what: str) -> None:
        """Wait until *happens* says yes."""
        deadline = time.monotonic() + SECONDS
        while not happens():
            assert time.monotonic() < deadline, f"{what}: {self.shows()}; {self.log.read_text()[-3000:]}"
            time.sleep(0.1)


@pytest.fixture
def vetted(tmp_path: Path, fake_nvml_library: Path, slurm: SlurmCluster) -> Iterator[MakeNode]:
    """A function that makes agents; they stop, and the nodes are idle again, when the test ends."""
    made: list[Vetted] = []

    def make(name: str = "n1", **changes: Any) -> Vetted:
        node = Vetted(tmp_path / name, fake_nvml_library, slurm, name, **changes)
        made.append(node)
        node.start()
        return node

    yield make
    for node in made:
        node.stop()
    for name in slurm.nodes:
        slurm.run("scontrol", "update", f"NodeName={name}", "Comment=")
        if slurm.node_state(name) != "idle":
            slurm.resume(name)


def test_a_hard_fault_drains_the_node_and_the_next_job_goes_elsewhere(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """The reason is ours and says what to do, and no job starts there any more."""
    node = vetted("n1")
    assert slurm.srun("-w", "n1", "true").returncode == 0
    node.lose()
    node.until(lambda: slurm.node_state("n1") == "drained", "the node is drained")
    reason = slurm.node_reason("n1")
    assert reason.startswith("nodevet: hw kernel-log: ")
    assert reason.endswith("]")
    asked, drained = node.scontrol.writes
    assert asked.startswith("update NodeName=n1 Comment=nodevet: asks for a permit, ")
    assert drained.startswith(f"update NodeName=n1 State=DRAIN Reason={reason} Comment=nodevet: drained, ")
    job = slurm.submit("true")
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job ends")
    assert slurm.job(job)["BatchHost"] in ("n2", "n3")
    node.until(lambda: node.metric("nodevet_slurm_drained_by_nodevet") == 1, "the metric tells it")
    assert node.metric("nodevet_slurm_writes_total", kind="drain") == 1


def test_our_reason_follows_a_graver_fault(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """Of the second write only the reason is part, so that it could drain nothing that was resumed meanwhile."""
    node = vetted("n1")
    node.spoil_memory()
    node.until(lambda: slurm.node_reason("n1").endswith("[drain_reset]"), "the node is drained")
    node.lose()
    node.until(lambda: slurm.node_reason("n1").endswith("[reboot]"), "the reason follows")
    assert [call.split()[2] for call in node.scontrol.writes[1:]] == ["State=DRAIN", "Reason=nodevet:"]


def test_a_persons_drain_stays_as_it_was_while_scontrol_is_broken(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """In each way in which it may break: reason, user and time are untouched, nothing is written, why is counted."""
    node = vetted("n1")
    node.until(lambda: node.scontrol.calls, "the node was read at the start")
    slurm.drain("n1", HUMAN)
    before = node.shows()
    node.scontrol.switch("nothing")
    node.lose()
    for how, why in BREAKAGES.items():
        node.scontrol.switch(how)
        counted = node.skipped(why)
        node.until(partial(_grows, node, why, counted), f"scontrol {how}: {why} is counted")
        assert (node.shows(), node.scontrol.writes) == (before, []), how
    node.until(
        lambda: any(node.skipped(f"read_{why}") for why in ("failed", "timeout", "empty", "unparsable")),
        "it is counted",
    )
    assert (node.shows(), node.scontrol.writes) == (before, [])
    node.scontrol.switch("works")
    node.until(lambda: node.skipped("foreign_reason"), "the reason is seen as foreign")
    assert (node.shows(), node.scontrol.writes) == (before, [])


def test_a_note_of_a_person_over_the_mark_leaves_the_node_in_the_limits(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """The agent marks the drain again, and SLURM's own reason takes nothing over; the resume frees both fields."""
    node = vetted("n1")
    node.lose(0)
    node.until(lambda: "Comment=nodevet: drained, " in slurm.run("scontrol", "show", "node", "n1"), "it is marked")
    slurm.run("scontrol", "update", "NodeName=n1", "Comment=RMA 4711 ordered")
    node.until(lambda: "Extra=nodevet: drained, " in slurm.run("scontrol", "show", "node", "n1"), "it is marked again")
    slurm.run("scontrol", "update", "NodeName=n1", "Reason=Kill task failed")
    other = vetted("n2", ratio=0.34)
    other.lose(0)
    other.until(lambda: other.skipped("limit"), "the limit is reached")
    assert slurm.node_state("n2") == "idle"
    slurm.resume("n1")
    node.until(lambda: "Extra=" not in slurm.run("scontrol", "show", "node", "n1"), "the mark is taken back")
    assert "Comment=RMA 4711 ordered" in slurm.run("scontrol", "show", "node", "n1")


def test_a_persons_resume_is_not_fought_after_a_restart_either(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """What was known is acknowledged, with a note; a fault that is new drains again."""
    node = vetted("n1")
    node.lose(0)
    node.until(lambda: slurm.node_state("n1") == "drained", "the node is drained")
    node.until(lambda: node.metric("nodevet_slurm_drained_by_nodevet") == 1, "the agent has seen it")
    slurm.resume("n1")
    node.until(lambda: _states(node) == ["acknowledged"], "the fault is acknowledged")
    (finding,) = (entry for entry in node.status()["findings"] if entry["code"] == "nvidia.xid.79")
    assert finding["note"].startswith("resumed by somebody in SLURM")
    node.until(lambda: "nodevet: drained" not in slurm.run("scontrol", "show", "node", "n1"), "the mark is taken back")
    writes = len(node.changes)
    node.stop()
    node.start()
    judged = node.status()["generation"]
    node.until(lambda: node.status()["generation"] > judged + 3, "three rounds and three polls went by")
    assert slurm.node_state("n1") == "idle"
    assert len(node.changes) == writes
    node.lose(1)
    node.until(lambda: slurm.node_state("n1") == "drained", "another fault drains again")


WAYS = {
    "undrain": (("State=UNDRAIN",),),
    "down, then resume": (("State=DOWN", "Reason=ops: fan"), ("State=RESUME",)),
    "idle": (("State=IDLE",),),
    "drained anew by a person, then resumed": (("State=DRAIN", "Reason=ops: fan"), ("State=RESUME",)),
    "resumed and drained and resumed at once": (
        ("State=RESUME",), ("State=DRAIN", "Reason=ops: fan"), ("State=RESUME",),
    ),
    "reason emptied, then resumed": (("Reason=",), ("State=RESUME",)),
}  # fmt: skip
"""How a person brings a node back: what scontrol update is given, one call after the other."""


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_person_types_to_bring_a_node_back_is_not_fought(
    vetted: MakeNode, slurm: SlurmCluster, way: str
) -> None:
    """The fault that was known is acknowledged, also over a reconfigure and a restart of the agent behind it."""
    node = vetted()
    node.spoil_memory()
    node.until(lambda: node.state_file().agent == "drained", "it is not drained")
    for words in WAYS[way]:
        slurm.run("scontrol", "update", "NodeName=n1", *words)
    node.until(lambda: slurm.node_state("n1") == "idle", "it is not in service")
    node.until(lambda: _states(node, "memory.uncorrected") == ["acknowledged"], "the fault is acknowledged")
    writes = len(node.changes)
    slurm.run("scontrol", "reconfigure")
    node.stop()
    node.start()
    judged = node.status()["generation"]
    node.until(lambda: node.status()["generation"] > judged + 3, "three rounds and three polls went by")
    assert _states(node, "memory.uncorrected") == ["acknowledged"]
    assert slurm.node_state("n1") == "idle"
    assert len(node.changes) == writes


@pytest.mark.parametrize("lost", ["nothing", "store", "runtime"])
def test_a_resume_while_the_agent_is_away_is_not_fought(vetted: MakeNode, slurm: SlurmCluster, lost: str) -> None:
    """The memory is in the store and in the runtime directory; either is enough."""
    node = vetted("n1")
    node.spoil_memory()
    node.until(lambda: slurm.node_state("n1") == "drained", "the node is drained")
    node.until(lambda: node.metric("nodevet_slurm_drained_by_nodevet") == 1, "it is told")
    node.stop()
    slurm.resume("n1")
    for path in {"store": node.state_dir, "runtime": node.runtime_dir}.get(lost, Path("/nonexistent")).glob("*"):
        if path.is_file():
            path.unlink()
    writes = len(node.changes)
    node.start()
    node.until(lambda: _states(node, "memory.uncorrected") == ["acknowledged"], "the fault is acknowledged")
    assert slurm.node_state("n1") == "idle"
    assert len(node.changes) == writes


def test_a_term_that_is_given_after_a_resume_ends(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """The later word counts: once it is over, the fault that is still there drains the node."""
    node = vetted()
    node.spoil_memory()
    node.until(lambda: node.state_file().agent == "drained", "it is not drained")
    slurm.resume("n1")
    node.until(lambda: _states(node, "memory.uncorrected") == ["acknowledged"], "the fault is acknowledged")
    which = ("memory.uncorrected", "--device", node.machine.uuid(0), "--part", "memory_block dram")
    told = node.command("ack", *which, "--note", "the vendor comes", "--until", "0.05m")
    assert told.returncode == 0, told.stderr
    node.until(lambda: slurm.node_state("n1") == "drained", "the term is over and the fault is there")


@pytest.mark.parametrize("moment", ["the drain", "the resume"])
def test_a_resume_holds_although_the_runtime_directory_was_full(
    tmp_path: Path, fake_nvml_library: Path, slurm: SlurmCluster, small_disk: Path, moment: str
) -> None:
    """The file of before says nothing of the drain, or of the resume: the next agent believes what is later."""
    node = Vetted(tmp_path / "n1", fake_nvml_library, slurm, "n1")
    node.runtime_dir = small_disk / "run"
    with node:
        node.until(lambda: node.scontrol.calls, "the node was read at the start")
        empty = fill(small_disk)
        node.spoil_memory()
        node.until(lambda: slurm.node_state("n1") == "drained", "it is drained")
        node.until(lambda: node.status()["slurm"]["drained_by"], "the agent has seen it")
        if moment == "the resume":
            slurm.resume("n1")
            node.until(lambda: _states(node, "memory.uncorrected") == ["acknowledged"], "it is acknowledged")
        node.stop()
        empty()
        if moment == "the drain":
            slurm.resume("n1")
        writes = len(node.changes)
        node.start()
        node.until(lambda: _states(node, "memory.uncorrected") == ["acknowledged"], "the fault is acknowledged")
        assert (slurm.node_state("n1"), len(node.changes)) == ("idle", writes)


def test_one_node_after_the_other_until_the_limit(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """Three nodes fail at the same moment; at a quarter of three only one is drained, and the others say why."""
    nodes = [vetted(name, ratio=0.25) for name in slurm.nodes]
    for node in nodes:
        node.lose()

    def is_settled() -> bool:
        drained = [name for name in slurm.nodes if "drain" in slurm.node_state(name)]
        assert len(drained) <= 1
        reached = sum(node.metric("nodevet_slurm_drain_limit_reached") or 0 for node in nodes)
        return (len(drained), reached) == (1, 2)

    nodes[0].until(is_settled, "one is drained, and two met the limit")
    assert sum(node.skipped("limit") > 0 for node in nodes) >= 2


def test_observe_says_what_it_would_do_and_writes_nothing(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """The first step of a site: metric, status and log tell the drain, the node stays as it is."""
    node = vetted("n1", writer="observe")
    node.lose()
    node.until(lambda: node.metric("nodevet_slurm_would_drain") == 1, "it says so")
    assert node.status()["slurm"]["doing"].startswith("would drain with the reason: nodevet: hw kernel-log: ")
    assert (slurm.node_state("n1"), node.scontrol.writes) == ("idle", [])


def test_a_right_that_is_missing_is_told_with_what_to_do(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """In the status, where a person looks who wonders why the node is not drained."""
    node = vetted("n1")
    node.scontrol.switch("denied")
    node.lose()
    node.until(lambda: node.skipped("denied"), "it is counted")
    node.until(lambda: any("AdminLevel=Operator" in line for line in node.status()["agent"]["notices"]), "it is told")
    assert slurm.node_state("n1") == "idle"


def test_a_simulated_node_is_never_told_of_to_slurm(tmp_path: Path, slurm: SlurmCluster) -> None:
    """A drill with the writer switched on by mistake: the node fails, and scontrol is not even started."""
    scontrol = SwitchedScontrol(tmp_path / "bin")
    settings = SETTINGS.format(
        writer="drain", node="n1", conf=slurm.configuration, scontrol=scontrol.program, ratio=1.0
    )
    scenario = tmp_path / "lost.toml"
    scenario.write_text('title = "lost"\n[[fault]]\nkind = "lost"\ndevice = 5\nat = "1s"\n')
    drill = ("--simulate", "dgx-h100", "--scenario", str(scenario))
    with RunningAgent(tmp_path, settings, arguments=drill) as agent:
        agent.wait_for(lambda status: status["verdict"] == "failed", 30.0, "the scenario brought no fault")
        assert agent.status()["slurm"] is None
    assert (scontrol.calls, slurm.node_state("n1")) == ([], "idle")


def test_the_agent_ends_in_time_while_scontrol_hangs(vetted: MakeNode, slurm: SlurmCluster) -> None:
    """SIGTERM is obeyed within two seconds, and the scontrol that ignores it is gone too."""
    node = vetted("n1")
    node.scontrol.switch("ignores")
    calls = len(node.scontrol.calls)
    node.lose()
    node.until(lambda: len(node.scontrol.calls) > calls, "scontrol hangs")
    assert node.stop() < STOP_SECONDS + BUSY_SECONDS
    left = [process for process in psutil.process_iter() if str(node.scontrol.program) in _words(process)]
    assert left == []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _grows(node: Vetted, why: str, counted: float) -> bool:
    return node.skipped(why) > counted


def _states(node: Vetted, code: str = "nvidia.xid.79") -> list[str | None]:
    return [entry["state"] for entry in node.status()["findings"] if entry["code"] == code]
