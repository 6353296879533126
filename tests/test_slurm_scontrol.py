"""scontrol as a child: every way in which it can fail has a name, a deadline, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.freezer import Freeze
from fakes.silent_file import silent

from nodevet.exporters.slurm.rules import NodeState, Why
from nodevet.exporters.slurm.scontrol import MAXIMUM_BYTES, Scontrol, SlurmError

ANSWER = "NodeName=n1 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n"
TIMEOUT_SECONDS = 0.5
END_SECONDS = TIMEOUT_SECONDS + 1.5


def program(directory: Path, script: str) -> str:
    """Write a shell program and return its path."""
    path = directory / "scontrol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def scontrol(
    directory: Path, script: str, *, timeout_seconds: float = TIMEOUT_SECONDS, configuration: str = ""
) -> Scontrol:
    """Return what runs *script* as scontrol."""
    return Scontrol(program(directory, script), configuration=configuration, timeout_seconds=timeout_seconds)


def refusal(directory: Path, script: str, *, write: bool = False) -> SlurmError:
    """Return the error that *script* gives."""
    asked = scontrol(directory, script)
    with pytest.raises(SlurmError) as caught:
        asked.drain("n1", "nodevet: hw x: y [none]") if write else asked.read("n1")
    return caught.value


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """A file with the answer of a healthy node."""
    path = tmp_path / "answer"
    path.write_text(ANSWER)
    return path


def test_a_node_is_asked_for_by_name(tmp_path: Path, answers: Path) -> None:
    """The arguments are a list, so nothing in them is a shell's."""
    asked = scontrol(tmp_path, f"printf '%s|' \"$@\" >{tmp_path}/words; cat {answers}")
    assert asked.read("n1") == NodeState("n1", frozenset({"IDLE"}))
    asked.drain("n1", "nodevet: hw x: $(reboot) * [none]")
    assert (
        tmp_path / "words"
    ).read_text() == "update|NodeName=n1|State=DRAIN|Reason=nodevet: hw x: $(reboot) * [none]|"
    asked.update("n1", "r")
    assert (tmp_path / "words").read_text() == "update|NodeName=n1|Reason=r|"


def test_the_environment_is_clean(tmp_path: Path, answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither formats nor clusters that somebody set for himself reach it; the configuration does."""
    for name in ("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SINFO_FORMAT", "LD_PRELOAD_FAKE", "SLURM_CONF"):
        monkeypatch.setenv(name, "mine")
    asked = scontrol(tmp_path, f"env >{tmp_path}/env; cat {answers}", configuration="/etc/site/slurm.conf")
    asked.read("n1")
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    ours = {"LC_ALL", "PATH", "SCONTROL_ALL", "SCONTROL_LOCAL", "SLURM_CONF", "TZ"}
    assert set(seen) - {"PWD", "_", "OLDPWD", "SHLVL"} == ours
    assert (seen["SLURM_CONF"], seen["TZ"]) == ("/etc/site/slurm.conf", "UTC0")


@pytest.mark.parametrize(
    ("script", "why", "says"),
    [
        ("exit 1", Why.READ_FAILED, "status 1"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", Why.READ_FAILED, "Unable to contact"),
        ("echo 'Node n1 not found'; exit 1", Why.READ_FAILED, "Node n1 not found"),
        ("kill -9 $$", Why.READ_FAILED, "status -9"),
        ("exit 0", Why.READ_EMPTY, "printed nothing"),
        ("echo; echo", Why.READ_EMPTY, "printed nothing"),
        ("echo hello", Why.READ_UNPARSABLE, "expected NodeName="),
        ("printf 'NodeName=n1 x\n   State=IDLE\n   Part'", Why.READ_UNPARSABLE, "its last line is cut off"),
        ("echo 'NodeName=n2 x'; echo '   State=IDLE'", Why.READ_UNPARSABLE, "expected node n1 alone"),
        ("exec head -c 20000000 /dev/zero", Why.READ_FAILED, f"more than {MAXIMUM_BYTES >> 20} MiB"),
        ("exec sleep 60", Why.READ_TIMEOUT, "no answer within 0.5 s: check slurmctld"),
        ("trap '' TERM; while :; do sleep 0.05; done", Why.READ_TIMEOUT, "no answer within"),
        ("cat /dev/zero | head -c 100; sleep 60", Why.READ_TIMEOUT, "no answer within"),
        ("exec >&- 2>&-; sleep 60", Why.READ_TIMEOUT, "no answer within"),
        ("sleep 60 & exit 0", Why.READ_TIMEOUT, "no answer within"),
    ],
)
def test_every_failure_of_a_read_has_a_name(tmp_path: Path, script: str, why: Why, says: str) -> None:
    """And ends in time, with all that it started."""
    began = time.monotonic()
    found = refusal(tmp_path, script)
    assert (found.why, says in str(found)) == (why, True), str(found)
    assert str(found).startswith("scontrol show node n1")
    assert time.monotonic() - began < END_SECONDS
    assert not _left(tmp_path)


@pytest.mark.parametrize(
    ("script", "why", "says"),
    [
        ("exit 1", Why.WRITE_FAILED, "status 1"),
        ("exec sleep 60", Why.WRITE_TIMEOUT, "no answer"),
        ("echo 'slurm_update error: Invalid user id' >&2; exit 1", Why.DENIED, "AdminLevel=Operator"),
        ("echo 'slurm_update error: Access/permission denied' >&2; exit 1", Why.DENIED, "run the agent as root"),
    ],
)
def test_every_failure_of_a_write_has_a_name(tmp_path: Path, script: str, why: Why, says: str) -> None:
    """A right that is missing says who needs it and how it is given."""
    found = refusal(tmp_path, script, write=True)
    assert (found.why, says in str(found)) == (why, True), str(found)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the setting that names it."""
    with pytest.raises(SlurmError, match=r"no such program: set slurm\.scontrol to its path") as caught:
        Scontrol(str(tmp_path / "absent")).read("n1")
    assert caught.value.why is Why.NO_COMMAND


def test_a_program_that_cannot_be_begun_has_its_time_too(tmp_path: Path) -> None:
    """SLURM on a server that stopped answering: before, the writer waited for it without a word, however long.

    Whether it was asked is then known, and so is that no permit can be had.
    """
    asked = scontrol(tmp_path, "echo", timeout_seconds=0.3)
    errors: list[SlurmError] = []

    def read() -> None:
        with pytest.raises(SlurmError) as caught:
            asked.read("n1")
        errors.append(caught.value)

    with silent(tmp_path / "scontrol"):
        reading = threading.Thread(target=read)
        reading.start()
        reading.join(1.5)
        told = [error.why for error in errors]
    reading.join()
    assert told == [Why.READ_TIMEOUT]
    assert not _left(tmp_path)


@pytest.mark.parametrize(("mode", "first"), [(0o644, "#!/bin/sh"), (0o755, "#!/absent/interpreter")])
def test_a_program_that_cannot_be_started_is_told_from_one_that_fails(tmp_path: Path, mode: int, first: str) -> None:
    """By the shell that starts it; a script of the site that misses something of its own has failed."""
    path = tmp_path / "scontrol"
    path.write_text(f"{first}\nabsent-program\n")
    path.chmod(mode)
    with pytest.raises(SlurmError) as caught:
        Scontrol(str(path)).read("n1")
    assert caught.value.why is Why.NO_COMMAND
    assert refusal(tmp_path, "absent-program").why is Why.READ_FAILED


def test_a_call_is_given_up_at_once(tmp_path: Path) -> None:
    """An agent that stops waits for no scontrol, and starts none any more."""
    asked = scontrol(tmp_path, "trap '' TERM; while :; do sleep 0.05; done", timeout_seconds=30.0)
    timer = threading.Timer(0.2, asked.give_up)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SlurmError, match="aborted, because the agent stops"):
        asked.read("n1")
    assert time.monotonic() - began < 1.5
    timer.join()
    with pytest.raises(SlurmError, match="not started, because the agent stops"):
        asked.read("n1")
    assert not _left(tmp_path)


def test_no_second_scontrol_beside_one_that_cannot_be_killed(tmp_path: Path, answers: Path, freeze: Freeze) -> None:
    """A process in the kernel (state D) takes no signal: it is left alone, told, and not doubled until it is gone."""
    asked = scontrol(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60", timeout_seconds=1.0)
    errors: list[SlurmError] = []

    def read() -> None:
        with pytest.raises(SlurmError) as caught:
            asked.read("n1")
        errors.append(caught.value)

    reading = threading.Thread(target=read)
    reading.start()
    pid = _pid(tmp_path / "pid")
    thaw = freeze(pid)
    reading.join(10)
    assert "no answer within" in str(errors[0])
    program(tmp_path, f"cat {answers}")
    with pytest.raises(SlurmError, match=rf"the previous scontrol \(pid {pid}\) cannot be killed") as caught:
        asked.read("n1")
    assert caught.value.why is Why.STUCK
    thaw()
    psutil.wait_procs([psutil.Process(pid)], timeout=5)
    assert asked.read("n1").name == "n1"


def _pid(path: Path) -> int:
    deadline = time.monotonic() + 5
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the program was not started"
        time.sleep(0.01)
    return int(path.read_text())


def _left(directory: Path) -> list[int]:
    """Return the processes that still run the program of *directory*, or that it started."""

    def ours() -> Iterator[int]:
        for child in psutil.Process().children(recursive=True):
            if child.status() != psutil.STATUS_ZOMBIE and str(directory) in " ".join(child.cmdline()):
                yield child.pid

    return list(ours())
