"""The state file: what is written, what a shell and Python read from it, and what is refused."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.shell_gate import gate, on_this_boot, shell_examples
from fakes.snapshots import EVERY_STATE, at, cpu_node, failed_node, gpu_node, starting_node, unknown_node
from fakes.views import bare_board

from nodevet.checks.core.model import ReaderState, Snapshot, State, Verdict
from nodevet.checks.core.scheduler import Permit, WriterStatus
from nodevet.checks.engine.modes import named
from nodevet.exporters.statefile.reader import NEVER, Absent, StateFile, boot_id, parse, read_state, uptime_seconds
from nodevet.exporters.statefile.writer import StateFileError, advice, clock_lead, state_text, write_state

BOOT = at().boot_id
NOW = at().boottime_ns / 1e9
TTL = 60.0
SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]


def read(path: Path, *, boot: str = BOOT, now: float = NOW, owner: int | None = None) -> StateFile | Absent:
    """Read *path* as a prolog of the present user would."""
    uid = os.getuid() if owner is None else owner
    return read_state(str(path), boot_id=boot, uptime_seconds=now, owner_uid=uid)


def found(path: Path, now: float = NOW) -> StateFile:
    """Read *path*, which must be there."""
    state = read(path, now=now)
    assert isinstance(state, StateFile), state
    return state


def written_by(writer: str, **changes: Any) -> Snapshot:
    """Return a failed node with a writer to SLURM."""
    slurm = WriterStatus(writer=writer, node="n1", **changes)
    failed = failed_node()
    return msgspec.structs.replace(failed, agent=msgspec.structs.replace(failed.agent, slurm=slurm))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_examples_close_the_node_whose_permit_it_is(tmp_path: Path, repository: Path, shell: str) -> None:
    """Several slurmd may share a machine, each with a prolog of its own."""
    failed = on_this_boot(failed_node())
    permit = Permit(held=True, node="n1")
    snapshot = msgspec.structs.replace(failed, agent=msgspec.structs.replace(failed.agent, permit=permit))
    write_state(tmp_path / "state", snapshot, ttl_seconds=TTL)
    whole, of_devices = shell_examples(repository)
    for program in (whole, of_devices.replace("accelerator 0", "accelerator 5")):
        codes = [gate(shell, program, tmp_path / "state", SLURMD_NODENAME=name).returncode for name in ("n1", "n2", "")]
        assert codes == [1, 0, 1]


@pytest.mark.parametrize("state", EVERY_STATE, ids=lambda state: state.value)
def test_what_was_written_is_read_back(tmp_path: Path, state: State) -> None:
    """Verdict, reason, expiry and every device survive the way through the file."""
    snapshot = EVERY_STATE[state]()
    write_state(tmp_path / "state", snapshot, ttl_seconds=TTL)
    file = found(tmp_path / "state")
    assert (file.state, file.reason, file.generation) == (state.value, snapshot.verdict.reason, snapshot.generation)
    assert file.fresh_until_uptime == int(NOW + TTL)
    assert file.action == snapshot.verdict.action.value
    assert file.node == snapshot.node
    devices = {device.id: device for device in file.devices}
    for device in snapshot.devices:
        verdict = snapshot.device_verdicts[device.id]
        line = devices[device.id]
        assert (line.state, line.reason, line.hard) == (verdict.state.value, verdict.reason, verdict.hard)
        assert (line.pci, line.minor) == (device.pci, device.minor)


def test_a_part_of_a_device_is_as_bad_as_the_whole(tmp_path: Path) -> None:
    """A job on a partition of a failed board is a job on the failed board, and a good part heals none."""
    snapshot = failed_node()
    bad = next(key for key, verdict in snapshot.device_verdicts.items() if verdict.state is State.FAILED)
    board = next(device for device in snapshot.devices if device.id == bad)
    part = msgspec.structs.replace(board, id="part", parent=board.id, minor=200)
    verdicts = {**snapshot.device_verdicts, "part": Verdict(state=State.OK, reason="healthy")}
    snapshot = msgspec.structs.replace(snapshot, devices=(*snapshot.devices, part), device_verdicts=verdicts)
    write_state(tmp_path / "state", snapshot, ttl_seconds=TTL)
    lines = {device.id: device for device in found(tmp_path / "state").devices}
    assert (lines["part"].state, lines["part"].reason) == (lines[bad].state, lines[bad].reason)
    assert (lines["part"].hard, lines["part"].minor) == (lines[bad].hard, 200)


def stopping(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* as its agent leaves it behind."""
    return msgspec.structs.replace(snapshot, agent=msgspec.structs.replace(snapshot.agent, stopping=True))


@pytest.mark.parametrize(
    ("snapshot", "agent"),
    [
        (gpu_node(), "running"),
        (starting_node(), "starting"),
        (stopping(gpu_node()), "stopped"),
        (failed_node(), "running"),
        (written_by("drain"), "draining"),
        (written_by("drain", considered=named(failed_node().episodes)), "running"),
        (written_by("drain", considered=named(failed_node().episodes), asking=True), "draining"),
        (written_by("drain", considered=named(failed_node().episodes), states=("DRAIN", "IDLE")), "drained"),
        (written_by("drain", states=("DRAIN",)), "drained"),
        (stopping(written_by("drain", states=("DRAIN",))), "drained"),
        (stopping(written_by("drain", states=("IDLE",))), "stopped"),
        (written_by("drain", considered=("something older",)), "draining"),
        (written_by("observe", wanted="nodevet: x"), "running"),
        (
            gpu_node(readers=(msgspec.structs.replace(gpu_node().readers[1], state=ReaderState.RELEASED),)),
            "released",
        ),
    ],
    ids=[
        "running",
        "starting",
        "stopped",
        "no writer",
        "just found",
        "told",
        "asks for the permit",
        "is drained",
        "was drained before the agent's start",
        "was drained when the agent stopped",
        "was in service when the agent stopped",
        "occurred anew",
        "observes",
        "released",
    ],
)
def test_the_agents_own_state_is_told(snapshot: Snapshot, agent: str) -> None:
    """A prolog can tell a node that was released or whose agent stopped from one that says nothing."""
    file = parse(state_text(snapshot, ttl_seconds=TTL))
    assert isinstance(file, StateFile)
    assert file.agent == agent


def test_an_ok_verdict_expires_and_a_hard_failure_does_not(tmp_path: Path) -> None:
    """The agent's death makes a healthy node unknown, and leaves a node closed that a hard fault closed."""
    path = tmp_path / "state"
    write_state(path, gpu_node(), ttl_seconds=TTL)
    assert isinstance(read(path, now=NOW + TTL - 1), StateFile)
    expired = read(path, now=NOW + TTL)
    assert isinstance(expired, Absent)
    assert "expired" in expired.reason
    write_state(path, failed_node(), ttl_seconds=TTL)
    file = found(path, now=NOW + 1e6)
    assert (file.state, file.hard, file.expires_uptime) == ("failed", True, NEVER)


def test_a_measured_failure_expires(tmp_path: Path) -> None:
    """A failed verdict that rests on measurements alone says nothing once it is old."""
    snapshot = failed_node()
    soft = msgspec.structs.replace(snapshot, verdict=msgspec.structs.replace(snapshot.verdict, hard=False))
    write_state(tmp_path / "state", soft, ttl_seconds=TTL)
    assert isinstance(read(tmp_path / "state", now=NOW + TTL), Absent)


@pytest.mark.parametrize(
    ("snapshot", "state"),
    [(cpu_node(), "ok"), (failed_node(), "ok"), (unknown_node(), "unknown"), (starting_node(), "unknown")],
    ids=["healthy", "a device failed", "no device readable", "starting"],
)
def test_the_node_line_holds_faults_of_no_single_device(snapshot: Snapshot, state: str) -> None:
    """One lost accelerator leaves the node's own line ok, so that a job on the others may run."""
    file = parse(state_text(snapshot, ttl_seconds=TTL))
    assert isinstance(file, StateFile)
    assert [device.state for device in file.devices if device.kind == "node"] == [state]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.chmod(0o666), "written by others"),
        (lambda path: (path.rename(path.with_name("real")), path.symlink_to("real")), "symbolic link"),
        (lambda path: (path.unlink(), path.mkdir()), "no regular file"),
        (lambda path: path.write_text(""), "end is missing"),
        (lambda path: path.write_text(path.read_text()[:-20]), "end is missing"),
        (lambda path: path.write_text(path.read_text().replace("ok", "fine", 1)), "'fine' is not one of ok"),
        (lambda path: path.write_text(path.read_text().replace("state/1", "state/2")), "nodevet-state/2"),
        (lambda path: path.write_text(path.read_text().replace(" real ", " simulated ")), "simulated"),
        (lambda path: path.write_text(re.sub(r"^ok \d+", "ok soon", path.read_text())), "soon"),
        (lambda path: path.write_bytes(b"\xff\x00\n" * 4 + b"end 4\n"), "malformed"),
    ],
    ids=[
        "missing", "mode", "symlink", "directory", "empty", "cut", "verdict", "format", "simulated", "expiry", "binary",
    ],
)  # fmt: skip
def test_what_cannot_be_trusted_is_absent(tmp_path: Path, spoil: Callable[[Path], object], why: str) -> None:
    """Every fault of the file is named and none is read as a verdict."""
    path = tmp_path / "state"
    write_state(path, gpu_node(), ttl_seconds=TTL)
    spoil(path)
    state = read(path)
    assert isinstance(state, Absent)
    assert why in state.reason


def test_another_boot_and_another_owner_are_absent(tmp_path: Path) -> None:
    """A file that survived a reboot, or that somebody else put there, says nothing."""
    write_state(tmp_path / "state", failed_node(), ttl_seconds=TTL)
    assert isinstance(read(tmp_path / "state", boot="0f0f0f0f-0000-4000-8000-000000000000"), Absent)
    foreign = read(tmp_path / "state", owner=os.getuid() + 1)
    assert isinstance(foreign, Absent)
    assert "belongs to user" in foreign.reason


def test_hostile_words_stay_on_their_line() -> None:
    """A reason with newlines, escapes and backslashes cannot forge a line."""
    evil = Verdict(state=State.OK, reason="fine\nend 2\nfailed 1 1 x\x1b[31m \\n $(reboot)")
    file = parse(state_text(gpu_node(verdict=evil, node="n 1\n"), ttl_seconds=TTL))
    assert isinstance(file, StateFile)
    assert file.reason == "fine end 2 failed 1 1 x [31m n $(reboot)"
    assert file.node == "n 1"


def test_the_file_is_replaced_in_one_step_with_its_mode(tmp_path: Path) -> None:
    """A reader that holds the old file keeps it, the new one is readable by all, and nothing is left beside it."""
    path = tmp_path / "state"
    (tmp_path / ".state.new").write_text("left by a writer that was killed")
    write_state(path, gpu_node(), ttl_seconds=TTL)
    with path.open() as old:
        write_state(path, failed_node(), ttl_seconds=TTL)
        assert old.read().startswith("ok ")
    assert path.read_text().startswith("failed ")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Writing through a planted link is refused, and what it points to is untouched."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "state").symlink_to(precious)
    (tmp_path / ".state.new").symlink_to(precious)
    with pytest.raises(StateFileError, match="symbolic link, which is not followed: remove the link"):
        write_state(tmp_path / "state", gpu_node(), ttl_seconds=TTL)
    (tmp_path / "state").unlink()
    write_state(tmp_path / "state", gpu_node(), ttl_seconds=TTL)
    assert precious.read_text() == "keep"


def test_a_full_disk_is_one_line_and_the_old_file_stays(tmp_path: Path) -> None:
    """No space left: the error names file and next step, the last verdict is still there, no temporary file is."""
    path = tmp_path / "state"
    write_state(path, gpu_node(), ttl_seconds=TTL)
    before = path.read_text()
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from fakes.snapshots import failed_node\n"
        "from nodevet.exporters.statefile.writer import StateFileError, write_state\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "try:\n"
        "    write_state(Path(sys.argv[1]), failed_node(), ttl_seconds=60)\n"
        "except StateFileError as error:\n"
        "    print(error)\n"
    )
    tests = str(Path(__file__).resolve().parent)
    child = subprocess.run([sys.executable, "-c", code, str(path), tests], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == f"state file {path} cannot be written: File too large"
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("number", "what"),
    [(errno.ENOSPC, "no space left; the old file stays"), (errno.EROFS, "Read-only file system")],
)
def test_each_error_says_what_to_do(tmp_path: Path, number: int, what: str) -> None:
    """The message of a failed write names the next step."""
    assert what in advice(OSError(number, os.strerror(number)))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """The runtime directory is never created here: its absence is told."""
    with pytest.raises(StateFileError, match="its directory does not exist: create it or set --runtime-dir"):
        write_state(tmp_path / "absent" / "state", gpu_node(), ttl_seconds=TTL)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("state", "code"), [(State.OK, 0), (State.DEGRADED, 0), (State.FAILED, 1), (State.UNKNOWN, 3)])
def test_the_documented_shell_gate_decides(
    tmp_path: Path, repository: Path, shell: str, state: State, code: int
) -> None:
    """The program in the reference page closes for a hard failure, and tells a missing verdict from a good one."""
    write_state(tmp_path / "state", on_this_boot(EVERY_STATE[state]()), ttl_seconds=TTL)
    done = gate(shell, shell_examples(repository)[0], tmp_path / "state")
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    if state is State.FAILED:
        assert "nvidia.xid.79" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("snapshot", "ttl", "why"),
    [
        (cpu_node(), TTL, "another boot"),
        (on_this_boot(cpu_node()), -1, "expired"),
        (on_this_boot(gpu_node(simulated=True)), TTL, "simulated"),
        (None, TTL, "missing"),
    ],
    ids=["foreign boot", "expired", "simulated", "missing"],
)
def test_the_documented_shell_gate_knows_what_is_absent(
    tmp_path: Path, repository: Path, shell: str, snapshot: Snapshot | None, ttl: float, why: str
) -> None:
    """The shell refuses what Python refuses."""
    if snapshot is not None:
        write_state(tmp_path / "state", snapshot, ttl_seconds=ttl)
    done = gate(shell, shell_examples(repository)[0], tmp_path / "state")
    assert (done.returncode, why in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("minors", "code"), [("0 1", 0), ("5 6", 1)])
def test_the_documented_shell_loop_finds_the_devices_of_a_job(
    tmp_path: Path, repository: Path, shell: str, minors: str, code: int
) -> None:
    """Device 5 is lost: a job on 0 and 1 may start, one on 5 and 6 may not."""
    write_state(tmp_path / "state", on_this_boot(failed_node()), ttl_seconds=TTL)
    first, second = minors.split()
    program = shell_examples(repository)[1]
    program = program.replace("accelerator 0", f"accelerator {first}").replace("accelerator 1", f"accelerator {second}")
    assert gate(shell, program, tmp_path / "state").returncode == code


def test_the_clock_of_the_file_is_the_clock_of_the_shell() -> None:
    """CLOCK_BOOTTIME, which the agent writes, and /proc/uptime, which the shell reads, agree."""
    assert abs(uptime_seconds() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert re.fullmatch(r"[0-9a-f-]{36}", boot_id())


def shown(root: Path, uptime: str) -> str:
    """Return *root* with a /proc/uptime that shows *uptime*."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/uptime").write_text(uptime)
    return str(root)


def test_on_an_ordinary_host_the_clocks_lead_each_other_by_nothing(tmp_path: Path) -> None:
    """Not by their rounding either, nor where the one of the readers cannot be read or is no number."""
    assert clock_lead() == 0.0
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for uptime in (f"{now - 0.5:.2f} 1.00\n", f"{int(now)}.00 1.00\n", "", "soon 1.00\n", "nan 1.00\n", "inf 1.00\n"):
        assert clock_lead(shown(tmp_path, uptime)) == 0.0
    assert clock_lead(str(tmp_path / "absent")) == 0.0


@pytest.mark.parametrize("of_the_hosts", [0.0, 0.5, 2.0])
def test_a_container_with_an_uptime_of_its_own_has_its_expiry_in_that(tmp_path: Path, of_the_hosts: float) -> None:
    """Where lxcfs gives /proc/uptime, a dead agent's `ok` outlived it by as long as the host was up before."""
    snapshot = on_this_boot(gpu_node())
    present = snapshot.time.boottime_ns / 1e9
    uptime = present * of_the_hosts
    lead = clock_lead(shown(tmp_path, f"{uptime:.2f} 1.00\n"))
    assert lead == pytest.approx(present - uptime, abs=2.0)
    write_state(tmp_path / "state", snapshot, ttl_seconds=TTL, lead_seconds=lead)
    for later, is_good in ((TTL - 5.0, True), (TTL + 1.0, False)):
        state = read(tmp_path / "state", boot=boot_id(), now=uptime + later)
        assert isinstance(state, StateFile) is is_good


def test_an_expiry_before_the_start_of_a_container_is_a_number(tmp_path: Path) -> None:
    """A reader in shell takes no sign; a verdict of a hard fault stands whatever the clocks are."""
    write_state(tmp_path / "state", failed_node(), ttl_seconds=TTL, lead_seconds=2 * NOW + TTL)
    assert found(tmp_path / "state").fresh_until_uptime == 0
    assert found(tmp_path / "state").expires_uptime == NEVER


def test_the_reader_needs_the_standard_library_alone() -> None:
    """A prolog imports no model, no msgspec and no JSON to read the verdict."""
    code = (
        "import sys, nodevet.exporters.statefile.reader\n"
        "print(sorted({'msgspec', 'json', 'nodevet.checks', 'dataclasses'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("driver", "place"),
    [("vfio-pci", None), ("nouveau", None), (None, None), ("nvidia", "0000:05:00.0")],
    ids=["lent", "another driver", "no driver", "its own driver"],
)
def test_a_board_that_slurm_does_not_find_has_no_place_among_its_gpus(driver: str | None, place: str | None) -> None:
    """SLURM's number of each board behind it led to the one before: jobs started on a broken board, unlike others."""
    bare = bare_board("0000:05:00.0", driver)
    before = gpu_node()
    read = parse(state_text(msgspec.structs.replace(before, devices=(bare, *before.devices)), ttl_seconds=60))
    assert isinstance(read, StateFile)
    assert {device.pci for device in read.devices if device.id == bare.id} == {place}
    assert all(device.pci for device in read.devices if device.kind == "accelerator" and device.id != bare.id)
