"""What the gate costs a job: the prolog by itself, and inside a real SLURM, beside a handful of shell checks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness import DISK, ROOT, Figure, Options, main, timed, timed_in_turn, timing

from fakes.slurm_cluster import SlurmCluster, SlurmOptions  # isort: skip - harness makes it importable
from fakes.slurm_gate import Gate, accelerator

MEMORY_FILE_SYSTEM = "/dev/shm"  # noqa: S108 - like /run, where the state file lies
PROLOG_BUDGET_MS = 2.0

TEN_CHECKS = """
fail() { echo "$1" >&2; exit 1; }
set -- $(cat /proc/meminfo | awk '/^MemTotal/ {print $2}'); [ "$1" -gt 1000 ] || fail memory
[ "$(nproc)" -ge 1 ] || fail processors
grep -q ' / ' /proc/mounts || fail "root is not mounted"
[ "$(df -P / | awk 'NR == 2 {print $4}')" -gt 1000 ] || fail "disk is full"
[ "$(df -Pi / | awk 'NR == 2 {print $4}')" -gt 100 ] || fail "no inodes left"
[ "$(cat /proc/loadavg | cut -d. -f1)" -lt 10000 ] || fail load
[ "$(cat /sys/class/net/lo/flags)" != 0x0 ] || fail interface
getent passwd root >/dev/null || fail passwd
ps -eo comm= | grep -q . || fail processes
touch /tmp/.write-test && rm -f /tmp/.write-test || fail "/tmp is not writable"
"""
"""What a site's own prolog often looks at; written for this comparison, each with the usual programs."""


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(dir=MEMORY_FILE_SYSTEM) as folder:
        gate = _gate(Path(folder))
        yield from _alone(gate, options)
        yield from _inside(gate, Path(folder), options)


def _gate(folder: Path) -> Gate:
    """Return a healthy node of eight GPUs, with the settings and comments that are shipped."""
    gate = Gate(ROOT, folder, ("sh",))
    shipped = (ROOT / "deploy/slurm/gate.conf").read_text(encoding="utf-8")
    (gate.scripts / "gate.conf").write_text(shipped.replace("/run/nodevet", str(gate.runtime)), encoding="utf-8")
    gate.write(*(accelerator(minor) for minor in range(8)), expires_in=3600)
    return gate


def _alone(gate: Gate, options: Options) -> Iterator[Figure]:
    """Yield what the scripts cost when they are started as slurmd starts them."""
    environment = {
        "SLURM_CONF": str(gate.gres.with_name("slurm.conf")),
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    }
    rounds = options.rounds(300)
    prolog, epilog = [str(gate.scripts / name) for name in ("prolog.sh", "epilog.sh")]
    empty, verdict = timed_in_turn(lambda: _run(["/bin/sh", "-c", ":"]), lambda: _run([prolog], environment), rounds)
    assert gate.lines()[-1].startswith("open "), gate.lines()[-1]
    yield timing("beside: an empty `sh -c :`", empty)
    yield timing("prolog of a job with eight GPUs", verdict, PROLOG_BUDGET_MS)
    yield timing("its epilog", timed(lambda: _run([epilog], environment), rounds))
    checks = timed(lambda: _run(["/bin/sh", "-c", TEN_CHECKS], {"PATH": "/usr/bin:/bin"}), options.rounds(50))
    yield timing("beside: ten host checks in shell", checks)


def _inside(gate: Gate, folder: Path, options: Options) -> Iterator[Figure]:
    """Yield how long a job of SLURM takes with the gate and without any prolog, in turn."""
    if shutil.which("slurmctld") is None:
        return
    # SLURM's own files lie on the disk, where they always do.
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DISK)))
        bare = stack.enter_context(SlurmCluster(disk / "bare", SlurmOptions(nodes=1)))
        hooks = {"prolog": gate.scripts / "prolog.sh", "epilog": gate.scripts / "epilog.sh"}
        gated = stack.enter_context(SlurmCluster(disk / "gated", SlurmOptions(nodes=1, **hooks)))
        without, with_gate = timed_in_turn(lambda: _job(bare), lambda: _job(gated), options.rounds(40))
        yield timing("beside: `srun true` without a prolog", without)
        yield timing("`srun true` with prolog and epilog", with_gate)


def _job(slurm: SlurmCluster) -> None:
    done = slurm.srun("--gres=gpu:1", "true")
    assert done.returncode == 0, done.stderr


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, env=environment or {}, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main("slurm_gate", lambda options: list(measure(options)))
