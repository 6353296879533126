"""The prolog's answer for every state file that it may meet, in every shell that it may be run by."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.privileges import needs_root
from fakes.slurm_gate import Decided, Gate, Line, accelerator, shells
from fakes.slurm_steps import SteppedGate
from fakes.small_disk import fill
from fakes.snapshots import cpu_node, failed_node, gpu_node, starting_node, unknown_node

from nodevet.checks.core.model import Instant, Snapshot
from nodevet.exporters.statefile.reader import StateFile, boot_id, parse
from nodevet.exporters.statefile.writer import write_state

EIGHT = tuple(accelerator(minor) for minor in range(8))


@pytest.fixture(params=shells(), ids=lambda shell: shell[0])
def gate(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> SteppedGate:
    """The scripts beside an empty runtime directory, on a clock that only their own waiting moves."""
    return SteppedGate(repository, tmp_path, request.param)


def with_faults(*minors: int) -> tuple[Line, ...]:
    """Return eight GPUs, those of *minors* broken for good."""
    return tuple(accelerator(n, "failed", "hard") if n in minors else accelerator(n) for n in range(8))


def test_a_healthy_job_starts_and_is_claimed(gate: Gate) -> None:
    """Exit 0, nothing said, one line in the log, and the claim stands until the epilog."""
    gate.write(*EIGHT)
    decided = gate.prolog("0,1")
    assert (decided.code, decided.decision, decided.said) == (0, "open", "")
    assert [entry.name for entry in gate.claims.iterdir()] == ["7"]
    assert gate.run("epilog.sh", SLURM_JOB_ID="7").returncode == 0
    assert list(gate.claims.iterdir()) == []


@pytest.mark.parametrize(
    ("gpus", "faults", "code"),
    [
        ("0,1", (1,), 1),
        ("0,1", (2, 7), 0),
        ("7", (7,), 1),
        ("0,1,2,3,4,5,6,7", (4,), 1),
        (None, (0, 1, 2, 3, 4, 5, 6, 7), 0),
        ("", (3,), 0),
        ("garbage!", (3,), 1),
        ("0-1", (3,), 1),
        ("0,,1", (3,), 1),
        (",", (3,), 1),
        ("9" * 25, (3,), 1),
        ("0," * 20000, (3,), 1),
    ],
)
def test_only_the_gpus_of_the_job_count(gate: Gate, gpus: str | None, faults: tuple[int, ...], code: int) -> None:
    """A fault on another's GPU closes nothing; where the job's GPUs cannot be told, every GPU counts."""
    gate.write(*with_faults(*faults), never=True)
    decided = gate.prolog(gpus)
    assert (decided.code, decided.decision) == (code, "closed" if code else "open")
    if code:
        assert "XID 79" in decided.said
        assert list(gate.claims.iterdir()) == []


@pytest.mark.parametrize(
    ("gres", "closed_by"),
    [
        ("Name=gpu File=/dev/nvidia[0-7]", {"0": 0, "3": 3}),
        (
            "Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=0-3\nName=gpu type=h100 File=/dev/nvidia[0-3]",
            {"0": 4, "4": 0, "7": 3},
        ),
        (
            "# local\nname=gpu file=/dev/nvidia3\nName=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0",
            {"0": 3, "2": 0},
        ),
        ("NodeName=n[2-9] Name=gpu File=/dev/nvidia[0-7]\nNodeName=n[01-1] Name=gpu File=/dev/nvidia[2,5]", {"1": 5}),
        ("NodeName=n1 Name=gpu \\\n  File=/dev/nvidia7\nNodeName=n10 Name=gpu File=/dev/nvidia0", {"0": 7}),
        ("Name=gpu File=/dev/nvidia5,/dev/nvidia4,/dev/nvidia0", {"0": 5, "1": 4, "2": 0}),
        ("Name=gpu File=/dev/nvidia[5-6],/dev/nvidia[0,2]", {"0": 5, "1": 6, "2": 0, "3": 2}),
        ("Name=nic File=/dev/mlx5\nName=gpu File=/dev/nvidia[2-3]", {"0": 2}),
        (
            "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[2-3]\nNodeName=n2 Name=gpu Type=h100 File=/dev/nvidia0\n"
            "Name=nic Type=cx7 File=/dev/mlx5",
            {"0": 2},
        ),
    ],
)
def test_gres_conf_says_which_device_an_index_is(gate: Gate, gres: str, closed_by: dict[str, int]) -> None:
    """The place in SLURM's list leads to the device node that stands there, and to no other."""
    gate.gres.write_text(gres + "\n")
    for index, minor in closed_by.items():
        gate.write(*with_faults(minor), never=True)
        assert gate.prolog(index).decision == "closed"
        gate.write(*with_faults(*set(range(8)) - {minor}), never=True)
        assert gate.prolog(index).decision == "open"


@pytest.mark.parametrize(("node", "decision"), [("n08", "open"), ("n010", "open"), ("n8", "open"), ("m08", "closed")])
def test_names_of_nodes_are_numbers_with_or_without_zeros(gate: Gate, node: str, decision: str) -> None:
    """08 is eight: its first GPU is /dev/nvidia4, and that of another node the broken /dev/nvidia0."""
    gate.gres.write_text(
        "NodeName=n[001-010] Name=gpu File=/dev/nvidia[4-7]\nNodeName=m08 Name=gpu File=/dev/nvidia0\n"
    )
    gate.write(*with_faults(0), never=True)
    assert gate.prolog("0", SLURMD_NODENAME=node).decision == decision


@pytest.mark.parametrize(
    ("verdict", "hard", "word"), [("failed", "hard", "closed"), ("unknown", "refused", "refused_closed")]
)
@pytest.mark.parametrize("agent", ["running", "draining", "drained"])
def test_a_permit_closes_the_node_whose_it_is(gate: Gate, verdict: str, hard: str, word: str, agent: str) -> None:
    """Several slurmd share a machine and its agent: only one of their nodes was counted when the permit was given."""
    gate.set(on_stale="fail", drain_wait_seconds="0" if agent == "draining" else "1")
    gpu = accelerator(0, verdict, hard)
    for name in ("n1", "n10", "node", "n"):
        gate.write(Line(id="node:n1"), gpu, never=True, agent=agent)
        decided = gate.prolog("0", SLURMD_NODENAME=name)
        own = "resumed" if agent == "drained" else word
        assert decided.decision == (own if name == "n1" else "unpermitted")
        assert ("the permit to close is that of n1" in decided.words) is (name != "n1")
    for identity, name in (("node:n1", ""), ("node", "n2")):
        gate.write(Line(id=identity), gpu, never=True)
        assert gate.prolog("0", SLURMD_NODENAME=name).decision == word


def test_another_node_of_the_machine_waits_for_no_permit_that_is_not_its_own(gate: SteppedGate) -> None:
    """The agent is about to drain the node that it asks for."""
    gate.set(drain_wait_seconds=15)
    gate.write(Line(id="node:n1"), accelerator(0, "failed", "hard"), never=True, agent="draining")
    assert gate.prolog("0", SLURMD_NODENAME="n2").decision == "unpermitted"
    assert gate.waited_seconds == 0


@pytest.mark.parametrize(
    "gres",
    [
        None,
        "",
        "Name=gpu Count=8",
        "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap3",
        "Name=gpu File=/dev/nvidia[0-",
        "Name=gpu File=/dev/nvidia[0-999999]",
        "Name=gpu File=/dev/accel/accel0",
        "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-7]",
        "NodeName=n1,n2 Name=gpu File=/dev/nvidia[0-7]",
        "Include /etc/slurm/gpus.conf",
        "Include /etc/slurm/gpus.conf\nName=gpu File=/dev/nvidia[0-7]",
        "Name=gpu File=/dev/nvidia[0-6]\nName=gpu MultipleFiles=/dev/nvidia7,/dev/nvidia-caps/nvidia-cap3",
        "NodeName=n[08-09] Name=gpu File=/dev/nvidia[0-7]",
        "Name=gpu Type=a100 File=/dev/nvidia[0-3]\nName=gpu Type=h100 File=/dev/nvidia[4-7]",
        "Name=gpu File=/dev/nvidia[0-3]\nName=gpu TYPE=h100 File=/dev/nvidia[4-7]",
        "Name=gpu Type=h100 File=/dev/nvidia[0-3]\nName=gpu File=/dev/nvidia[4-7]",
    ],
)
def test_where_the_order_cannot_be_told_every_gpu_counts(gate: Gate, gres: str | None) -> None:
    """A job never starts beside a fault that may be its own, with or without GPUs that SLURM knows of."""
    if gres is None:
        gate.gres.unlink()
    else:
        gate.gres.write_text(gres)
    gate.write(*with_faults(5), never=True)
    assert gate.prolog("0").decision == "closed"
    assert gate.prolog(None).decision == "closed"
    gate.write(*EIGHT)
    assert gate.prolog("0").decision == "open"


def test_autodetect_counts_by_pci_address(gate: Gate) -> None:
    """Lines come in the order of PCI addresses, and the device numbers may run the other way."""
    gate.gres.write_text("AutoDetect=nvml\n")
    lines = [accelerator(7 - place, pci=place) for place in range(8)]
    lines[2] = accelerator(5, "failed", "hard", pci=2)
    gate.write(*lines, never=True)
    assert gate.prolog("2").decision == "closed"
    assert gate.prolog("5").decision == "open"


@pytest.mark.parametrize(
    ("gone", "broken", "closed"),
    [((2,), 4, {3, 4}), ((2,), 1, {1}), ((0,), 1, {0, 1}), ((7,), 6, {6}), ((1, 3), 5, {3, 4, 5}), ((1, 6), 4, {3, 4})],
)
def test_a_board_that_is_gone_shifts_the_place_of_no_other(
    gate: Gate, gone: tuple[int, ...], broken: int, closed: set[int]
) -> None:
    """slurmd counts it until its own next start: a number counts for the board of before and for that of after."""
    gate.gres.write_text("AutoDetect=nvml\n")
    gate.set(on_stale="fail")
    lines = [accelerator(n) for n in range(8)]
    for place in gone:
        known = msgspec.structs.replace(lines[place], pci="-", verdict="failed", hard="observed")
        lines[place] = msgspec.structs.replace(known, reason="is gone, acknowledged")
    lines[broken] = accelerator(broken, "failed", "hard")
    gate.write(*lines, never=True)
    assert {n for n in range(8) if gate.prolog(str(n)).code} == closed
    assert gate.prolog("8").decision == "no_verdict_closed", "a number that no board has is not known"


@pytest.mark.parametrize(
    ("gres", "closed"),
    [
        ("AutoDetect=nvml\n", {2}),
        ("autodetect=RSMI\n", {2}),
        ("AutoDetect=nvidia\n", {0}),
        ("NodeName=n1 AutoDetect=nvidia Name=gpu Type=a100\n", {0}),
        ("AutoDetect=nvidia\nNodeName=n1 AutoDetect=nvml Name=gpu\n", set(range(8))),
        ("AutoDetect=nrt\n", set(range(8))),
        ("AutoDetect = nvml\n", set(range(8))),
    ],
)
def test_each_way_to_detect_has_an_order_of_its_own(gate: Gate, gres: str, closed: set[int]) -> None:
    """Without NVML SLURM sorts by device node, whose numbers need not follow the PCI addresses."""
    gate.gres.write_text(gres)
    numbers = (2, 3, 0, 1, 6, 7, 4, 5)
    broken = {0: ("failed", "hard")}
    gate.write(*(accelerator(minor, *broken.get(minor, ()), pci=n) for n, minor in enumerate(numbers)), never=True)
    assert {n for n in range(8) if gate.prolog(str(n)).decision == "closed"} == closed


@pytest.mark.parametrize("sign", [" = ", "= ", " ="])
def test_blanks_around_a_sign_in_gres_conf_take_no_line_of_another_node(gate: Gate, sign: str) -> None:
    """SLURM allows them, and the first line would be taken for one of this node."""
    lines = (
        f"NodeName{sign}{node} Name=gpu File=/dev/nvidia[{files}]\n" for node, files in (("n2", "4-7"), ("n1", "0-3"))
    )
    gate.gres.write_text("".join(lines))
    gate.write(*with_faults(0), never=True)
    assert gate.prolog("0").decision == "closed"


def test_autodetect_beside_slices_cannot_be_told(gate: Gate) -> None:
    """With MIG the n-th GPU of SLURM's is a slice of any board, so every board of the node counts."""
    gate.gres.write_text("AutoDetect=nvml\n")
    gate.write(accelerator(0, "failed", "hard"), *EIGHT[1:], never=True)
    capabilities = gate.runtime.parent / "driver" / "capabilities"
    (capabilities / "mig").mkdir(parents=True)
    (capabilities / "gpu0" / "mig").mkdir(parents=True)
    assert gate.prolog("3").decision == "open"
    (capabilities / "gpu0" / "mig" / "gi3" / "ci0").mkdir(parents=True)
    assert {gate.prolog(gpus).decision for gpus in ("0", "3", "9", "8,9")} == {"closed"}
    gate.gres.write_text("Name=gpu File=/dev/nvidia[0-7]\n")
    assert gate.prolog("3").decision == "open", "a list of files has no slices"


def test_amd_devices_are_found_by_their_render_node(gate: Gate) -> None:
    """/dev/dri/renderD130 is number 130."""
    gate.gres.write_text("Name=gpu Type=mi300x File=/dev/dri/renderD[128-135]\n")
    gate.write(*(accelerator(128 + n, *(("failed", "hard") if n == 2 else ()), pci=n) for n in range(8)), never=True)
    assert gate.prolog("2").decision == "closed"
    assert gate.prolog("3").decision == "open"


@pytest.mark.parametrize(("gpus", "code"), [("minor", 0), ("pci", 1), ("all", 1), ("0 1 2 3", 0), ("2 0", 1)])
def test_a_site_may_say_how_the_index_is_read(gate: Gate, gpus: str, code: int) -> None:
    """The setting outranks gres.conf; here number 2 is broken, which lies first on the bus."""
    gate.set(gpus=gpus)
    gate.write(accelerator(2, "failed", "hard", pci=0), accelerator(0, pci=1), accelerator(1, pci=2), never=True)
    assert gate.prolog("0").code == code


@pytest.mark.parametrize(
    ("lines", "decision"),
    [
        ((Line(verdict="failed", hard="hard", reason="driver hung"), *EIGHT), "closed"),
        ((*EIGHT, Line("nic", "0000:9a:00.0", "-", "failed", "hard", "none", "mlx5_0", "is gone")), "closed"),
        ((*EIGHT, Line("disk", "-", "-", "unknown", "soft", "none", "nvme0", "nothing was evaluated")), "open"),
        ((*EIGHT[:7], accelerator("-", "failed", "hard", pci=7)), "closed"),
        ((*EIGHT[:7], accelerator("-", "unknown", pci=7)), "open"),
        ((accelerator(0, "failed", "soft"), *EIGHT[1:]), "open"),
        ((accelerator(0, "degraded"), *EIGHT[1:]), "open"),
        ((accelerator(0, "unknown"), *EIGHT[1:]), "no_verdict_open"),
        ((*EIGHT[:7], accelerator(7, "unknown")), "open"),
        ((accelerator(0, "failed", "observed"), *EIGHT[1:]), "open"),
        ((Line(verdict="unknown", reason="kernel log unreadable"), *EIGHT), "no_verdict_open"),
        (EIGHT[1:], "no_verdict_open"),
    ],
)
def test_what_counts_besides_the_jobs_gpu(gate: Gate, lines: tuple[Line, ...], decision: str) -> None:
    """For a job on GPU 0: hard faults of all that jobs share count; its GPU without a line is unknown."""
    gate.write(*lines)
    assert gate.prolog("0").decision == decision


def test_a_fault_that_no_line_carries_is_the_nodes(gate: Gate) -> None:
    """The first line alone says failed and hard: that is nobody's fault in particular, so everybody's."""
    gate.write(*EIGHT)
    gate.state.write_text(gate.state.read_text().replace("ok ", "failed ", 1).replace(" idle soft ", " idle hard ", 1))
    assert gate.prolog(None).decision == "closed"


def removed(path: Path) -> Path:
    """Remove the file *path*, so that something else can take its place."""
    path.unlink()
    return path


DISTRUSTED: dict[str, Callable[[Gate], object]] = {
    "absent": lambda gate: gate.state.unlink(),
    "link": lambda gate: gate.state.symlink_to(gate.state.rename(gate.runtime / "other")),
    "dangling link": lambda gate: removed(gate.state).symlink_to("nowhere"),
    "directory": lambda gate: removed(gate.state).mkdir(),
    "pipe": lambda gate: subprocess.run(["mkfifo", removed(gate.state)], check=True),
    "empty": lambda gate: gate.state.write_text(""),
    "one line": lambda gate: gate.state.write_text("ok 99999999 1 healthy\n"),
    "no end": lambda gate: gate.state.write_text(gate.text(*EIGHT).rsplit("end", 1)[0]),
    "cut line": lambda gate: gate.state.write_text(gate.text(*EIGHT)[:-3]),
    "wrong end": lambda gate: gate.state.write_text(gate.text(*EIGHT).replace("end 11", "end 12")),
    "zeros": lambda gate: gate.state.write_bytes(bytes(4096)),
    "noise": lambda gate: gate.state.write_bytes(os.urandom(4096)),
    "expired": lambda gate: gate.write(*EIGHT, expires_in=-5),
    "expired with a fault": lambda gate: gate.write(*with_faults(0), expires_in=-5),
    "other boot": lambda gate: gate.write(*EIGHT, boot_id="7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    "simulated": lambda gate: gate.write(*with_faults(0), origin="simulated"),
    "other format": lambda gate: gate.write(*EIGHT, format="nodevet-state/2"),
    "no number": lambda gate: gate.write(*EIGHT, fresh_until="soon"),
    "long number": lambda gate: gate.write(*EIGHT, fresh_until="9" * 40),
    "stale lines": lambda gate: gate.write(*with_faults(7), expires_in=-5, never=True),
    "no runtime directory": lambda gate: gate.runtime.rename(gate.runtime.with_name("gone")),
}


@pytest.mark.parametrize("what", DISTRUSTED)
def test_without_a_verdict_the_site_decides(gate: Gate, what: str) -> None:
    """`pass` opens, `fail` closes, and the log says that there was no verdict."""
    gate.write(*EIGHT)
    DISTRUSTED[what](gate)
    logged = gate.runtime.is_dir()
    passed = gate.prolog("0")
    assert (passed.code, passed.decision) == (0, "no_verdict_open" if logged else "")
    gate.set(on_stale="fail")
    failed = gate.prolog("0")
    assert (failed.code, failed.decision) == (1, "no_verdict_closed" if logged else "")
    assert failed.said.startswith("nodevet: ")


@needs_root
def test_a_file_of_another_user_counts_as_absent(gate: Gate) -> None:
    """Whoever can write the file may not decide."""
    gate.write(*EIGHT)
    os.chown(gate.state, 65534, 65534)
    assert gate.prolog("0").decision == "no_verdict_open"


def test_a_hard_fault_outlives_the_agent(gate: Gate) -> None:
    """The failed GPU stays closed although nothing is up to date; a job elsewhere has no verdict."""
    gate.write(*with_faults(3), never=True, expires_in=-3600)
    assert gate.prolog("3").decision == "closed"
    assert gate.prolog("4").decision == "no_verdict_open"


def test_observe_closes_nothing_and_tells(gate: Gate) -> None:
    """What would have closed is counted as observed."""
    gate.set(mode="observe", on_stale="fail")
    gate.write(*with_faults(0), never=True)
    assert (gate.prolog("0").code, gate.prolog("0").decision) == (0, "observed")
    gate.state.unlink()
    assert (gate.prolog("0").code, gate.prolog("0").decision) == (0, "observed")


def test_a_slip_in_the_settings_costs_a_word_in_the_log(gate: Gate) -> None:
    """Bad lines of gate.conf leave the default and are named; nothing in it is executed."""
    canary = gate.runtime / "canary"
    gate.set(on_stale="maybe", probe_wait_seconds="5; touch " + str(canary))
    with (gate.scripts / "gate.conf").open("a") as settings:
        settings.write(f"$(touch {canary})\nmode=`touch {canary}`")
    gate.write(*EIGHT)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (0, "open")
    assert "gate.conf: not understood: mode=`touch" in decided.words
    assert not canary.exists()


def test_the_shipped_settings_are_the_defaults(gate: Gate, repository: Path) -> None:
    """Every line of the shipped gate.conf is understood, its explanations are not read, and it changes nothing."""
    shipped = (repository / "deploy" / "slurm" / "gate.conf").read_text()
    (gate.scripts / "gate.conf").write_text(shipped.replace("/run/nodevet", str(gate.runtime)))
    gate.write(*EIGHT)
    assert gate.prolog("0").words == "generation 42"
    assert gate.prolog("0").decision == "open"
    gate.write(*with_faults(0), never=True)
    assert gate.prolog("0").decision == "observed"
    library = (repository / "deploy" / "slurm" / "gate.sh").read_text()
    settings = shipped.split("# end of settings")[0].split()
    assert [line for line in settings if f" {line}" not in library] == []


@pytest.mark.parametrize("job", ["", "../../state", "7 8", "-rf", "7\n8", "9" * 200, "$(reboot)", "*"])
def test_a_job_id_that_is_no_number_claims_nothing(gate: Gate, job: str) -> None:
    """It names no file, inside the folder or out of it, and the log keeps its form."""
    gate.write(*EIGHT)
    before = gate.state.read_text()
    decided = gate.prolog("0", job=job)
    assert (decided.code, decided.decision) == (0, "no_claim_open")
    assert (list(gate.claims.iterdir()), gate.state.read_text(), len(gate.lines())) == ([], before, 1)
    assert gate.run("epilog.sh", SLURM_JOB_ID=job).returncode == 0
    assert gate.state.read_text() == before


def test_the_folder_of_claims_is_not_followed_elsewhere(gate: Gate, tmp_path: Path) -> None:
    """Neither prolog nor epilog touches what a link leads to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "7").write_text("precious")
    gate.claims.rmdir()
    gate.claims.symlink_to(elsewhere)
    gate.write(*EIGHT)
    assert gate.prolog("0").decision == "no_claim_open"
    assert gate.run("epilog.sh", SLURM_JOB_ID="7").returncode == 0
    gate.claims.unlink()
    gate.claims.mkdir()
    (gate.claims / "7").symlink_to(elsewhere / "7")
    assert gate.prolog("0").decision == "no_claim_open"
    assert (elsewhere / "7").read_text() == "precious"


def test_a_folder_of_claims_that_is_missing_follows_the_policy(gate: Gate) -> None:
    """A load could start beside the job, so the verdict alone does not open."""
    gate.write(*EIGHT)
    gate.claims.rmdir()
    assert gate.prolog("0").decision == "no_claim_open"
    gate.set(on_stale="fail")
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (1, "no_claim_closed")
    assert "cannot be written" in decided.said


def test_a_full_disk_costs_no_node(small_disk: Path, repository: Path) -> None:
    """Neither claim nor log fits: the policy decides, and a hard fault still closes."""
    for shell in shells():
        gate = Gate(repository, small_disk / shell[0], shell)
        gate.write(*EIGHT)
        taken = [(gate.claims / f"{number}") for number in range(100000, 103000)]
        for path in taken:  # a file system without a free block may still have room for names
            try:
                path.touch()
            except OSError:
                break
        empty = fill(small_disk)
        decided = gate.prolog("0")
        assert decided.code == 0, decided
        empty()
        gate.write(*with_faults(0), never=True)
        again = fill(small_disk)
        assert gate.prolog("0").code == 1
        again()


def test_a_file_that_is_replaced_all_the_time_is_read_whole(gate: Gate) -> None:
    """The reader keeps the file that it opened: every run finds a verdict, whatever the writer does."""
    gate.write(*EIGHT)
    ends = threading.Event()

    def replace() -> None:
        while not ends.is_set():
            fresh = gate.runtime / ".state.new"
            fresh.write_text(gate.text(*EIGHT))
            fresh.replace(gate.state)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        decisions = {gate.prolog("0,7").decision for _ in range(20)}
    finally:
        ends.set()
        writer.join()
    assert decisions == {"open"}


def test_a_load_that_does_not_end_is_waited_for_so_long_and_no_longer(gate: SteppedGate) -> None:
    """The bound is the site's, and then its policy decides."""
    gate.set(probe_wait_seconds=1)
    gate.write(*EIGHT, load="probing")
    decided = gate.prolog("0")
    assert (decided.code, decided.decision, gate.waited_seconds) == (0, "probing_open", 1)
    gate.set(on_stale="fail", probe_wait_seconds=0)
    assert gate.prolog("0").decision == "probing_closed"
    assert gate.waited_seconds == 0


def test_a_job_waits_until_the_load_is_gone(gate: SteppedGate) -> None:
    """The claim is there before the state is read, and the job starts once the state says idle."""
    gate.write(*EIGHT, load="probing")
    seen: list[str] = []

    def finish() -> None:
        seen.extend(entry.name for entry in gate.claims.iterdir())
        replaced(gate, *EIGHT, agent="running")

    assert meanwhile(gate, wait, finish).decision == "open"
    assert (seen, gate.waited_seconds) == (["7"], 0.1)


def test_a_hard_fault_does_not_wait_for_the_load(gate: SteppedGate) -> None:
    """What closes the gate anyway closes it at once."""
    gate.set(probe_wait_seconds=10)
    gate.write(*with_faults(0), never=True, load="probing")
    assert gate.prolog("0").decision == "closed"
    assert gate.waited_seconds == 0


def test_a_closed_gate_lets_the_agent_drain_first(gate: SteppedGate) -> None:
    """Its claim says so while it waits, which ends once the drain was told."""
    gate.write(*with_faults(0), never=True, agent="draining")
    seen: list[str] = []

    def drain() -> None:
        seen.append((gate.claims / "7").read_text())
        gate.write(*with_faults(0), never=True)

    decided = meanwhile(gate, wait, drain)
    assert (decided.code, decided.decision, seen) == (1, "closed", ["closed\n"])
    assert gate.waited_seconds == 0.1
    assert list(gate.claims.iterdir()) == []


@pytest.mark.parametrize("agent", ["draining", "drained"])
def test_a_sleep_that_takes_whole_seconds_only_bounds_the_wait_as_well(gate: SteppedGate, agent: str) -> None:
    """POSIX asks for no more; a script that did not sleep at all would cost a processor."""
    gate.takes_fractions = False
    gate.set(drain_wait_seconds=3)
    gate.write(*with_faults(0), never=True, agent=agent)
    assert gate.prolog("0").decision == ("closed" if agent == "draining" else "resumed")
    assert gate.waited_seconds == 3


@pytest.mark.parametrize("agent", ["draining", "drained", "probing"])
def test_the_clock_and_the_sleep_of_the_machine_serve(
    request: pytest.FixtureRequest, repository: Path, tmp_path: Path, agent: str
) -> None:
    """The scripts as shipped, which wait for as long as the agent takes: all other tests have a clock of their own."""
    for shell in shells():
        gate = Gate(repository, tmp_path / shell[0], shell, drain_wait_seconds=100000, probe_wait_seconds=100000)
        lines = EIGHT if agent == "probing" else with_faults(0)
        says, load = ("running", agent) if agent == "probing" else (agent, "idle")
        gate.write(*lines, never=True, agent=says, load=load)
        answer = threading.Thread(target=answered, args=(gate, lines), daemon=True)
        answer.start()
        assert gate.prolog("0").decision == ("open" if agent == "probing" else "closed")
        answer.join()


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"drain_wait_seconds": 0}, {}),
        ({"mode": "observe"}, {}),
        ({}, {"expires_in": -5}),
        ({}, {"agent": "running"}),
        ({}, {"agent": "stopped"}),
    ],
    ids=["no wait", "observe", "agent gone", "told", "stopped"],
)
def test_nobody_waits_for_a_drain_that_does_not_come(
    gate: SteppedGate, settings: dict[str, object], state: dict[str, Any]
) -> None:
    """Not where the site does not want to, where the agent is dead, nor where nothing is due."""
    gate.set(**{"drain_wait_seconds": 10, **settings})
    gate.write(*with_faults(0), never=True, **{"agent": "draining", **state})
    decided = gate.prolog("0")
    assert decided.code == (0 if "mode" in settings else 1)
    assert gate.waited_seconds == 0


@pytest.mark.parametrize("options", ["-e", "-u", "-C", "-eu"])
def test_options_of_the_shell_change_no_decision(repository: Path, tmp_path: Path, options: str) -> None:
    """A first line `#!/bin/sh -e` of the site's ends no script behind the decision that it has logged."""
    found = []
    for name, shell in (("plain", ("sh",)), ("set", ("sh", options))):
        gate = Gate(repository, tmp_path / name, shell, drain_wait_seconds=0, probe_wait_seconds=0)
        for line in (accelerator(0), accelerator(0, "failed", "hard"), accelerator(0, "failed", "unpermitted")):
            for agent in ("running", "draining", "drained"):
                gate.write(line, agent=agent)
                done = gate.prolog("0")
                found.append((done.code, done.decision))
    assert found[9:] == found[:9]


def test_with_all_every_gpu_counts_for_a_job_that_names_none(gate: Gate) -> None:
    """SLURM does not say of every job that it has GPUs; by gres.conf such a job meets none."""
    gate.write(*with_faults(3), never=True)
    assert gate.prolog(None).decision == "open"
    gate.set(gpus="all")
    assert (gate.prolog(None).code, gate.prolog("0").code) == (1, 1)


def test_the_wait_for_a_drain_is_bounded(gate: SteppedGate) -> None:
    """A controller that does not answer holds no job for longer."""
    gate.set(drain_wait_seconds=1)
    gate.write(*with_faults(0), never=True, agent="draining")
    assert gate.prolog("0").code == 1
    assert gate.waited_seconds == 1


def test_a_fault_without_a_permit_opens_and_is_counted(gate: Gate) -> None:
    """Also where the verdict is old, but not where the site wants no job without one; another's GPU is another's."""
    unpermitted = (accelerator(0, "failed", "unpermitted"), *EIGHT[1:])
    gate.write(*unpermitted, never=True)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision, decided.said) == (0, "unpermitted", "")
    assert "XID 79" in decided.words
    assert gate.prolog("1").decision == "open"
    gate.write(*unpermitted, never=True, expires_in=-5)
    assert gate.prolog("0").decision == "unpermitted"
    gate.write(*unpermitted, load="probing")
    gate.set(probe_wait_seconds=0)
    assert gate.prolog("0").decision == "unpermitted"
    gate.set(on_stale="fail")
    assert gate.prolog("0").decision == "probing_closed"
    gate.write(*with_faults(1), *unpermitted[:1], never=True)
    assert gate.prolog("0,1").decision == "closed"


def test_an_unpermitted_fault_that_no_line_carries_is_the_nodes(gate: Gate) -> None:
    """It opens, for every job."""
    gate.write(*EIGHT, hard="unpermitted")
    gate.state.write_text(gate.state.read_text().replace("ok ", "failed ", 1))
    assert gate.prolog(None).decision == "unpermitted"


@pytest.mark.parametrize("verdict", ["failed", "unknown"])
def test_a_driver_that_refuses_every_gpu_follows_a_setting_of_its_own(gate: Gate, verdict: str) -> None:
    """Closed unless the site wants it open; `on_stale` is about an agent that is gone."""
    gate.write(Line(verdict=verdict, hard="refused", reason="the driver refuses every GPU"), *EIGHT)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (1, "refused_closed")
    assert "the driver refuses every GPU" in decided.said
    assert list(gate.claims.iterdir()) == []
    gate.set(on_stale="fail", on_driver_refusal="pass")
    assert (gate.prolog("0").code, gate.prolog("0").decision) == (0, "refused_open")
    gate.set(on_driver_refusal="fail", mode="observe")
    assert (gate.prolog("0").code, gate.prolog("0").decision) == (0, "observed")


@pytest.mark.parametrize("verdict", ["failed", "unknown"])
def test_what_the_site_lets_only_be_observed_closes_by_no_setting(gate: Gate, verdict: str) -> None:
    """A driver that refuses all under `[gate] mode = "observe"`: no ignorance, so `on_stale` says nothing of it."""
    gate.set(on_stale="fail", on_driver_refusal="fail")
    lines = [accelerator(number, verdict, "observed") for number in range(8)]
    gate.write(Line(verdict=verdict, hard="observed", reason="the driver refuses every GPU"), *lines)
    assert (gate.prolog("0").code, gate.prolog("0,1").decision) == (0, "open")


def wait() -> None:
    """The agent does nothing yet."""


def meanwhile(gate: SteppedGate, *steps: Callable[[], object]) -> Decided:
    """Return what a prolog decides where the agent does these *steps*, one each time that the prolog sleeps."""
    gate.agent = lambda sleeps: steps[sleeps - 1]() if sleeps <= len(steps) else None
    try:
        return gate.prolog("0")
    finally:
        gate.agent = lambda _sleeps: None


def replaced(gate: Gate, *lines: Line, agent: str) -> None:
    """Write another state as the agent does, in one step."""
    fresh = gate.runtime / ".state.new"
    fresh.write_text(gate.text(*lines, never=True, agent=agent))
    fresh.replace(gate.state)


def answered(gate: Gate, lines: tuple[Line, ...]) -> None:
    """Answer the first prolog that claims the node, with the claim's word where it waits for one."""
    claim = gate.claims / "7"
    while not claim.exists():
        time.sleep(0.001)
    if " drained " in gate.state.read_text():
        while claim.read_text() != "closed\n":
            time.sleep(0.001)
        claim.write_text("drained\n")
        return
    replaced(gate, *lines, agent="running")


def test_a_prolog_on_a_node_that_was_resumed_asks_the_agent_to_look_again(gate: SteppedGate) -> None:
    """It starts the job when that acknowledged the fault, and closes when the node is drained after all."""
    claim = gate.claims / "7"

    def acknowledges() -> None:
        assert claim.read_text() == "closed\n"
        replaced(gate, *EIGHT, agent="running")

    gate.write(*with_faults(0), never=True, agent="drained")
    assert meanwhile(gate, wait, acknowledges).decision == "open"
    assert (claim.read_text(), gate.waited_seconds) == ("", 0.1)
    gate.write(*with_faults(0), never=True, agent="drained")
    assert meanwhile(gate, wait, lambda: claim.write_text("drained\n")).decision == "closed"
    assert (claim.exists(), gate.waited_seconds) == (False, 0.1)


def test_a_permit_that_is_asked_for_is_waited_for(gate: SteppedGate) -> None:
    """When it comes the gate closes; when it is refused, or does not come in time, the job starts."""
    unpermitted = (accelerator(0, "failed", "unpermitted"), *EIGHT[1:])
    for answer, decision in ((with_faults(0), "closed"), (unpermitted, "unpermitted")):
        gate.write(*unpermitted, never=True, agent="draining")
        gives = partial(replaced, gate, *answer, agent="running")
        assert (meanwhile(gate, wait, gives).decision, gate.waited_seconds) == (decision, 0.1)
    for settings, waited in (
        ({"drain_wait_seconds": 2}, 2),
        ({"drain_wait_seconds": 0}, 0),
        ({"drain_wait_seconds": 10, "mode": "observe"}, 0),
    ):
        gate.set(**settings)
        gate.write(*unpermitted, never=True, agent="draining")
        assert (gate.prolog("0").decision, gate.waited_seconds) == ("unpermitted", waited)


def test_a_node_that_was_drained_while_the_job_waited_was_resumed_by_nobody(gate: SteppedGate) -> None:
    """The job came while the agent was about to drain for a new fault, and has looked since: the gate closes."""
    unpermitted = (accelerator(0, "failed", "unpermitted"), *EIGHT[1:])
    gate.set(drain_wait_seconds=10)
    gate.write(*unpermitted, never=True, agent="draining")
    decided = meanwhile(gate, lambda: replaced(gate, *with_faults(0), agent="drained"))
    assert (decided.code, decided.decision) == (1, "closed")
    assert "XID 79" in decided.words
    assert "resumed" not in decided.words
    assert gate.waited_seconds == 0.05
    assert list(gate.claims.iterdir()) == []


def test_a_new_fault_behind_a_resume_is_waited_for_in_the_same_time(gate: SteppedGate) -> None:
    """The agent acknowledged what was known and asks a permit for what is new: it closes, or opens when time is up.

    However late the agent sees that, there is one time for both.
    """
    unpermitted = (accelerator(0, "failed", "unpermitted"), *EIGHT[1:])
    claim = gate.claims / "7"

    def acknowledges() -> None:
        assert claim.read_text() == "closed\n"
        replaced(gate, *unpermitted, agent="draining")

    drains = partial(replaced, gate, *with_faults(0), agent="drained")
    gate.set(drain_wait_seconds=1)
    for late in (0, 7, 18):
        gate.write(*with_faults(0), never=True, agent="drained")
        assert meanwhile(gate, *[wait] * late, acknowledges, drains).decision == "closed"
        assert gate.waited_seconds == (late + 2) / 20
        gate.write(*with_faults(0), never=True, agent="drained")
        decided = meanwhile(gate, *[wait] * late, acknowledges)
        assert (decided.code, decided.decision) == (0, "unpermitted")
        assert "XID 79" in decided.words
        assert gate.waited_seconds == 1


def test_without_an_answer_a_persons_word_counts(gate: SteppedGate) -> None:
    """The wait is bounded; a fault that still closes and a driver that refuses are no exception."""
    refused = (Line(verdict="failed", hard="refused", reason="refuses"), *EIGHT)
    for lines, seconds in ((with_faults(0), 1), (refused, 0), (refused, 1)):
        gate.set(drain_wait_seconds=seconds)
        gate.write(*lines, never=True, agent="drained")
        decided = gate.prolog("0")
        assert (decided.code, decided.decision) == (0, "resumed")
        assert gate.waited_seconds == seconds
        assert [entry.name for entry in gate.claims.iterdir()] == ["7"]
    gate.set(drain_wait_seconds=10)
    gate.write(*with_faults(0), never=True, agent="drained", expires_in=-5)
    assert gate.prolog("0").decision == "resumed"
    assert gate.waited_seconds == 0


@pytest.mark.parametrize("every", [1, 2, 3])
def test_an_agent_that_says_the_same_for_ever_holds_no_job_for_longer(gate: SteppedGate, every: int) -> None:
    """It answers with another word, and with `drained` again: the prolog asks once."""
    gate.set(drain_wait_seconds=1)
    gate.write(*with_faults(0), never=True, agent="drained")

    def flap(sleeps: int) -> None:
        replaced(gate, *with_faults(0), agent=("drained", "running")[sleeps // every % 2])

    gate.agent = flap
    assert gate.prolog("0").decision in ("closed", "resumed")
    assert gate.waited_seconds <= 1


@pytest.mark.parametrize(
    ("snapshot", "gpus", "decision"),
    [
        (gpu_node(), "0,7", "open"),
        (cpu_node(), None, "open"),
        (failed_node(), "0,1,2,3,4,5,6,7", "closed"),
        (unknown_node(), "0,1,2,3,4,5,6,7", "no_verdict_open"),
        (starting_node(), "0", "no_verdict_open"),
    ],
    ids=["healthy", "processors", "failed", "unknown", "starting"],
)
def test_what_the_agent_writes_is_understood(
    gate: SteppedGate, snapshot: Snapshot, gpus: str | None, decision: str
) -> None:
    """The real writer's file leads to the decision that its verdict asks for."""
    now = Instant(boot_id(), round(gate.uptime_seconds() * 1e9), time.time())
    write_state(gate.state, msgspec.structs.replace(snapshot, time=now), ttl_seconds=60)
    assert gate.prolog(gpus).decision == decision


def test_the_files_of_these_tests_are_state_files(gate: Gate) -> None:
    """The Python reader takes them as well, so the shell is not tested on inventions."""
    found = parse(gate.text(*with_faults(3), never=True))
    assert isinstance(found, StateFile)
    assert [device.minor for device in found.devices if device.state == "failed"] == [3]


@pytest.mark.parametrize("missing", ["gate.sh", "gres.sh"])
def test_half_an_installation_drains_nothing(gate: Gate, missing: str) -> None:
    """The scripts say what is missing."""
    gate.write(*EIGHT)
    (gate.scripts / missing).unlink()
    decided = gate.prolog("0")
    assert decided.code == 0
    assert missing in decided.said
    assert gate.run("epilog.sh", SLURM_JOB_ID="7").returncode == 0


def test_a_log_that_nobody_reads_does_not_grow_without_end(gate: Gate) -> None:
    """At 4 MiB no line is added; the decision stands all the same."""
    gate.write(*EIGHT)
    gate.log.write_bytes(b"x" * ((4 << 20) - 1) + b"\n")
    assert gate.prolog("0").code == 0
    assert gate.log.stat().st_size == 4 << 20


@pytest.mark.parametrize(
    ("lines", "origin", "code"),
    [
        (EIGHT, "real", 0),
        (with_faults(6), "real", 1),
        ((accelerator(0, "failed", "unpermitted"),), "real", 1),
        ((Line(verdict="unknown", hard="refused", reason="the driver refuses every GPU"), *EIGHT), "real", 1),
        (EIGHT, "simulated", 3),
        ((accelerator(0, "unknown"),), "real", 3),
        ((Line(verdict="unknown", hard="observed", reason="the driver refuses every GPU"), *EIGHT), "real", 3),
    ],
)
def test_the_health_check_tells_and_does_not_wait(gate: Gate, lines: tuple[Line, ...], origin: str, code: int) -> None:
    """On a machine that has been up for long it is a pure reader, and writes neither claim nor log."""
    gate.set(boot_window_seconds=0)
    gate.write(*lines, origin=origin)
    done = gate.run("healthcheck.sh")
    assert (done.returncode, done.stdout.startswith("nodevet: ")) == (code, True)
    assert (gate.lines(), list(gate.claims.iterdir())) == ([], [])


def test_the_health_check_of_a_young_machine_waits_for_the_first_verdict(gate: SteppedGate) -> None:
    """It waits while the agent starts, and answers with the verdict; it gives up at its bound."""
    gate.set(boot_window_seconds=99999999, boot_wait_seconds=10)
    gate.write(*EIGHT, agent="starting")
    gate.agent = lambda sleeps: gate.write(*EIGHT) if sleeps == 3 else None
    done = gate.run("healthcheck.sh")
    assert (done.returncode, done.stdout, gate.waited_seconds) == (0, "nodevet: ok: healthy\n", 3)
    gate.agent = lambda _sleeps: None
    gate.state.unlink()
    for seconds in (10, 0):
        gate.set(boot_wait_seconds=seconds)
        assert (gate.run("healthcheck.sh").returncode, gate.waited_seconds) == (3, seconds)
