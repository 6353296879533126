"""A real SLURM of three nodes on this machine: munged, slurmctld and a slurmd per node, all in one directory.

Key, sockets, state and logs lie in that directory and every port is a free one of 127.0.0.1, so clusters run side by
side and touch nothing outside. Debian's build lets several slurmd share a host (``MULTIPLE_SLURMD``), each with a port
of its own. A node's GPUs are device nodes with the numbers that NVIDIA's have; no driver stands behind them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import msgspec
import psutil
import pytest

__all__ = ["NO_DEVICE_NODES", "SlurmCluster", "SlurmOptions", "StartSlurm", "slurm", "start_slurm"]

NO_DEVICE_NODES = "no device nodes may be made here, which SLURM wants as GPUs"

NVIDIA_MAJOR = 195
"""Of /dev/nvidia0 and its like; without the driver they can be made and looked at, not opened."""

IDLE_SECONDS = 30.0
STOP_SECONDS = 5.0
POLL_SECONDS = 0.05

CONFIGURATION = """\
ClusterName=nodevet
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its credential has expired: 120 s, which anything below 5 also means.
AuthInfo=socket={directory}/munge.sock,cred_expire=5
CryptoType=crypto/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
ReturnToService=1
SlurmdTimeout=10
SlurmctldTimeout=30
KillWait=2
MessageTimeout=10
SlurmdParameters=config_overrides
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldDebug=verbose
SlurmdDebug=verbose
GresTypes=gpu
{extra}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmOptions(msgspec.Struct, frozen=True):
    """What a test wants of its cluster; the defaults are three nodes of eight GPUs without any hook of ours."""

    nodes: int = 3
    cpus: int = 8
    gpus: int = 8
    prolog: Path | None = None
    epilog: Path | None = None
    health_check: Path | None = None
    health_check_interval_seconds: int = 2
    prolog_flags: str = "Alloc"
    prolog_timeout_seconds: int = 30
    scheduler: tuple[str, ...] = ()
    """Further words of ``SchedulerParameters``, such as ``nohold_on_prolog_fail``."""
    gres: str | None = None
    """Text of gres.conf where the usual one will not do; ``{devices}`` stands for the folder of the device nodes."""
    gres_of_node: str | None = None
    """What ``Gres=`` of each node says where its GPUs are not all of one type."""
    extra: tuple[str, ...] = ()
    """Further lines of slurm.conf."""


class SlurmCluster:
    """The cluster in *directory*; ``start`` it, and ``stop`` it whatever happened."""

    def __init__(self, directory: Path, options: SlurmOptions | None = None) -> None:
        """Write the configuration. Raises OSError where device nodes cannot be made."""
        self.directory = directory
        self.options = options or SlurmOptions()
        self.nodes = tuple(f"n{number}" for number in range(1, self.options.nodes + 1))
        self.configuration = directory / "slurm.conf"
        self.devices = directory / "dev"
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "state").mkdir(parents=True)
        self._make_key()
        self._make_devices()
        self._configure()

    def __enter__(self) -> Self:
        """Start it."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    # Its daemons.

    def start(self) -> None:
        """Start every daemon and wait until every node is idle."""
        munge_socket = str(self.directory / "munge.sock")
        self._spawn(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={self.directory}/munge.key",
            f"--socket={munge_socket}",
            f"--pid-file={self.directory}/munged.pid",
            f"--log-file={self.directory}/munged-own.log",
            f"--seed-file={self.directory}/munged.seed",
        )
        answers = ["munge", "-S", munge_socket, "-n"]
        self.wait(lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0, "munged answers")
        self._spawn("slurmctld", "slurmctld", "-D", "-c", "-f", str(self.configuration))
        for node in self.nodes:
            self.start_node(node)
        self.wait(lambda: all(self.node_state(node) == "idle" for node in self.nodes), "every node is idle")

    def start_node(self, node: str, *options: str) -> None:
        """Start the slurmd of *node*."""
        self._spawn(f"slurmd-{node}", "slurmd", "-D", *options, "-N", node, "-f", str(self.configuration))

    def restart_controller(self, *, cold: bool = False, restore: Path | None = None) -> None:
        """Kill slurmctld and start it again: with its saved state, with none, or with that of *restore*."""
        self._end("slurmctld", signal.SIGTERM if restore is None and not cold else signal.SIGKILL)
        if restore is not None:
            shutil.rmtree(self.directory / "state")
            shutil.copytree(restore, self.directory / "state")
        self._spawn("slurmctld", "slurmctld", "-D", *(["-c"] if cold else []), "-f", str(self.configuration))
        self.wait(lambda: self.attempt("scontrol", "ping").stdout.count("UP"), "slurmctld answers")

    def restart_node(self, node: str, *options: str) -> None:
        """End the slurmd of *node* and start it again with *options*."""
        self._end(f"slurmd-{node}", signal.SIGTERM)
        self.start_node(node, *options)

    def stop(self) -> None:
        """Cancel every job, end every daemon, and leave no process of the cluster behind."""
        if "slurmctld" in self._daemons:
            with suppress(subprocess.SubprocessError):
                self.cancel_all()
        for name in sorted(self._daemons, key=lambda name: not name.startswith("slurmd")):
            self._end(name, signal.SIGTERM)
        left = self.processes
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=STOP_SECONDS)

    @property
    def processes(self) -> list[psutil.Process]:
        """Return every process of the cluster: daemons, steps and what jobs have started."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def log(self, daemon: str) -> str:
        """Return what *daemon* (``slurmctld``, ``slurmd-n1``) has logged."""
        return (self.directory / f"{daemon}.log").read_text(errors="replace")

    # What is asked of it.

    def run(self, *words: str, seconds: float = 30.0) -> str:
        """Run a command of SLURM and return its output. Raises AssertionError where it fails."""
        done = self.attempt(*words, seconds=seconds)
        assert done.returncode == 0, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def attempt(self, *words: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command of SLURM and return how it ended."""
        return subprocess.run(
            words,
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def srun(self, *words: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run an interactive job to its end; options of srun come first."""
        return self.attempt("srun", *words, seconds=seconds)

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch job of one line of shell and return its id; its output is ``job-ID.out`` in the directory."""
        output = str(self.directory / "job-%j.out")
        return int(self.run("sbatch", "--parsable", "-o", output, *options, "--wrap", script).split(";")[0])

    def output(self, job: int) -> str:
        """Return what batch job *job* has printed so far."""
        path = self.directory / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: int) -> dict[str, str]:
        """Return what SLURM says of *job*: ``JobState``, ``Reason``, ``BatchHost``, ``Restarts`` ..."""
        pairs = (word.partition("=") for word in self.run("scontrol", "-o", "show", "job", str(job)).split())
        return {name: value for name, _, value in pairs}

    def job_state(self, job: int) -> str:
        """Return the state of *job* in SLURM's word: ``PENDING``, ``RUNNING``, ``COMPLETED`` ..."""
        return self.job(job)["JobState"]

    def node_state(self, node: str) -> str:
        """Return the state of *node* in SLURM's long word: ``idle``, ``allocated``, ``draining``, ``drained`` ..."""
        return self.attempt("sinfo", "-h", "-n", node, "-o", "%T").stdout.strip()

    def node_reason(self, node: str) -> str:
        """Return the reason that stands at *node*, or an empty string."""
        reason = self.run("sinfo", "-h", "-n", node, "-o", "%E").strip()
        return "" if reason == "none" else reason

    def drain(self, node: str, reason: str) -> None:
        """Drain *node* as an operator does."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        """Resume *node* as an operator does, and wait until it is idle."""
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait(lambda: self.node_state(node) == "idle", f"{node} is idle")

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left."""
        self.run("scancel", "--user", _user())
        self.wait(lambda: not self.run("squeue", "-h").strip(), "no job is left")

    def wait(self, happens: Callable[[], object], what: str, seconds: float = IDLE_SECONDS) -> float:
        """Ask until *happens* says yes and return how long that took; fail after *seconds*, with slurmctld's log."""
        began = time.monotonic()
        while not happens():
            if time.monotonic() - began > seconds:
                log = self.log("slurmctld")[-3000:] if (self.directory / "slurmctld.log").exists() else ""
                raise AssertionError(f"not within {seconds:g} s: {what}; log of slurmctld: {log}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    # How it is made.

    def _make_key(self) -> None:
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _make_devices(self) -> None:
        self.devices.mkdir()
        for minor in range(self.options.gpus):
            os.mknod(self.devices / f"nvidia{minor}", 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, minor))

    def _configure(self) -> None:
        options = self.options
        controller_port, *ports = free_ports(1 + options.nodes)
        hooks = {
            "Prolog": options.prolog,
            "Epilog": options.epilog,
            "HealthCheckProgram": options.health_check,
            "HealthCheckInterval": options.health_check_interval_seconds if options.health_check else None,
        }
        hook_lines = [f"{name}={value}" for name, value in hooks.items() if value is not None]
        extra = [
            *([f"PrologFlags={options.prolog_flags}"] if options.prolog_flags else []),
            *([f"PrologEpilogTimeout={options.prolog_timeout_seconds}"] if options.prolog_timeout_seconds else []),
            *hook_lines,
            *options.extra,
        ]
        gpus = f" Gres={options.gres_of_node or f'gpu:h100:{options.gpus}'}" if options.gpus else ""
        nodes = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={options.cpus} RealMemory=1000{gpus} State=UNKNOWN"
            for node, port in zip(self.nodes, ports, strict=True)
        ]
        scheduler = ("bf_interval=1", "sched_interval=1", "batch_sched_delay=0", *options.scheduler)
        self.configuration.write_text(
            CONFIGURATION.format(
                controller_port=controller_port,
                user=_user(),
                directory=self.directory,
                scheduler=",".join(scheduler),
                extra="\n".join(extra),
                nodes="\n".join(nodes),
            )
        )
        gres = options.gres
        if gres is None:
            gres = f"Name=gpu Type=h100 File={{devices}}/nvidia[0-{options.gpus - 1}]\n" if options.gpus else ""
        (self.directory / "gres.conf").write_text(gres.format(devices=self.devices))

    def _spawn(self, name: str, *words: str) -> None:
        # A session of its own: what is sent to one cluster's group reaches no other, nor the tests.
        with (self.directory / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name: str, number: int) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        # By environment: a slurmstepd outlives its slurmd on purpose, and then is nobody's child.
        try:
            return process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(self.configuration)
        except psutil.Error:
            return False


def free_ports(count: int) -> list[int]:
    """Return *count* different ports of 127.0.0.1 on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [entry.getsockname()[1] for entry in sockets]


def _user() -> str:
    return psutil.Process().username()


StartSlurm = Callable[[SlurmOptions], SlurmCluster]
"""Starts a cluster as it is wanted; it is stopped at the end of the test module that asked for it."""


@pytest.fixture(scope="module")
def start_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSlurm]:
    """A function that starts clusters, for tests that want hooks or options of their own."""
    with ExitStack() as stack:

        def start(options: SlurmOptions) -> SlurmCluster:
            try:
                cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), options)
            except PermissionError:
                pytest.skip(NO_DEVICE_NODES)
            return stack.enter_context(cluster)

        yield start


@pytest.fixture(scope="module")
def slurm(start_slurm: StartSlurm) -> SlurmCluster:
    """A cluster of three idle nodes without hooks, shared by the tests of a module; leave its nodes idle."""
    return start_slurm(SlurmOptions())
