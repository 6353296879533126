"""The scripts of deploy/slurm as slurmd runs them, on state files written line by line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nodevet.exporters.statefile.reader import FORMAT, NEVER, boot_id, uptime_seconds

__all__ = ["GATE_FILES", "LIMIT_SECONDS", "Decided", "Gate", "Line", "accelerator", "install", "linked", "shells"]

GATE_FILES = ("gate.sh", "gres.sh", "prolog.sh", "epilog.sh", "healthcheck.sh")
LIMIT_SECONDS = 20.0


def shells() -> list[tuple[str, ...]]:
    """Return the shells that the scripts must run in: dash and bash always, busybox where it is installed."""
    found = [("dash",), ("bash", "--posix")]
    if shutil.which("busybox"):
        found.append(("busybox", "sh"))
    return found


def install(repository: Path, folder: Path, settings: Mapping[str, object]) -> Path:
    """Copy the scripts to *folder* with a gate.conf of *settings*, as a site does, and return the folder.

    What a script does that never comes to its settings, it does to a directory of its own too, not to the machine's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in GATE_FILES:
        shutil.copy(repository / "deploy" / "slurm" / name, folder / name)
        text = (folder / name).read_text()
        text = text.replace("/run/nodevet", f"{folder.parent}/unset")
        (folder / name).write_text(text.replace("/proc/driver/nvidia", f"{folder.parent}/driver"))
    (folder / "gate.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return folder


def linked(path: Path, home: Path) -> None:
    """Put a link in the place of *path*, which leads to it by way of one in a folder of *home* that all may write."""
    folder = home / "open"
    folder.mkdir()
    folder.chmod(0o777)
    path.rename(home / "kept")
    (folder / "link").symlink_to("../kept")
    path.symlink_to(folder / "link")


class Line(msgspec.Struct, frozen=True):
    """A line of a device in the state file; the defaults are the node's own line."""

    kind: str = "node"
    pci: str = "-"
    minor: str = "-"
    verdict: str = "ok"
    hard: str = "soft"
    action: str = "none"
    id: str = "node"
    reason: str = "healthy"

    def __str__(self) -> str:
        """Return it as it stands in the file."""
        return " ".join(str(getattr(self, name)) for name in self.__struct_fields__)


def accelerator(minor: int | str, verdict: str = "ok", hard: str = "soft", *, pci: int | None = None) -> Line:
    """Return the line of a GPU; its PCI bus is 16 times *pci*, which is *minor* where not given."""
    place = pci if pci is not None else int(minor)
    reason = "healthy" if verdict == "ok" else f"XID 79 on number {place}"
    return Line(
        "accelerator", f"0000:{0x10 * (place + 1):02x}:00.0", str(minor), verdict, hard, "none", "GPU-x", reason
    )


class Decided(msgspec.Struct, frozen=True):
    """How a prolog ended: its exit code, the decision that it logged (empty where none was), and all that it said."""

    code: int
    decision: str
    words: str
    said: str


class Gate:
    """A runtime directory, and the scripts beside it, run in *shell*."""

    def __init__(self, repository: Path, folder: Path, shell: tuple[str, ...], **settings: object) -> None:
        """Lay out an empty runtime directory with its folder of claims; the gate may close, unlike one as shipped."""
        self.runtime = folder / "run"
        self.claims = self.runtime / "claims"
        self.claims.mkdir(parents=True)
        self.state = self.runtime / "state"
        self.log = self.runtime / "gate.log"
        self.gres = folder / "gres.conf"
        self.gres.write_text("Name=gpu Type=h100 File=/dev/nvidia[0-7]\n")
        self.shell = shell
        self.scripts = install(repository, folder / "slurm", {"runtime_dir": self.runtime, "mode": "gate", **settings})

    def set(self, **settings: object) -> None:
        """Add *settings* to gate.conf; the last one counts."""
        with (self.scripts / "gate.conf").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def write(self, *lines: Line, expires_in: float = 60, never: bool = False, **changes: str) -> None:
        """Replace the state file by one of *lines*, fresh for *expires_in* seconds; the node's line is put before them.

        A prolog that waits reads it meanwhile, so it is replaced as the agent does: an empty file would open the gate.
        """
        fresh = self.state.with_name("state.new")
        fresh.write_text(self.text(*lines, expires_in=expires_in, never=never, **changes))
        fresh.replace(self.state)

    def text(self, *lines: Line, expires_in: float = 60, never: bool = False, **changes: str) -> str:
        """Return the text of such a state file; *changes* are fields of the second line."""
        if not any(line.kind == "node" for line in lines):
            lines = (Line(), *lines)
        worst = next((line for line in lines if line.verdict == "failed"), lines[0])
        fresh = max(0, int(self.uptime_seconds() + expires_in))
        fields = {
            "format": FORMAT,
            "boot_id": boot_id(),
            "origin": "real",
            "agent": "running",
            "load": "idle",
            "hard": worst.hard,
            "action": "none",
            "fresh_until": str(fresh),
            "node": "n1",
            **changes,
        }
        first = f"{worst.verdict} {NEVER if never else fresh} 42 {worst.reason}"
        body = [first, " ".join(fields.values()), *map(str, lines)]
        return "\n".join([*body, f"end {len(body)}", ""])

    def uptime_seconds(self) -> float:
        """Return how long the machine has been up, by the clock that the scripts read."""
        return uptime_seconds()

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script as slurmd does: no PATH, no HOME."""
        given = {"SLURM_CONF": str(self.gres.with_name("slurm.conf")), "SLURMD_NODENAME": "n1", **environment}
        shell = shutil.which(self.shell[0]) or self.shell[0]
        return subprocess.run(
            [shell, *self.shell[1:], str(self.scripts / script)],
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def prolog(self, gpus: str | None = None, job: str = "7", **environment: str) -> Decided:
        """Run the prolog of *job* with those GPUs, and return how it decided."""
        before = self.lines()
        if gpus is not None:
            environment["SLURM_JOB_GPUS"] = gpus
        done = self.run("prolog.sh", SLURM_JOB_ID=job, **environment)
        fresh = self.lines()[len(before) :]
        decision, _, _, words = fresh[-1].split(" ", 3) if fresh else ("", "", "", "")
        return Decided(done.returncode, decision, words, done.stdout + done.stderr)

    def lines(self) -> list[str]:
        """Return the lines of the log of decisions."""
        return self.log.read_text().splitlines() if self.log.is_file() else []
