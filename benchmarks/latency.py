"""How long until everybody knows: an event in the kernel log, and a driver call that never returns.

The real agent reads eight fake GPUs. A FIFO stands for /dev/kmsg: both wake the agent, and both hold records.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Figure, Options, main, timing

from fakes.nvml.build import build_fake_nvml  # isort: skip - harness makes it importable
from fakes.nvml.scenario import FakeNvml
from fakes.running_agent import RunningAgent

GPUS = 8
EVENT_BUDGET_MS = 1000.0
ANSWER_BUDGET_MS = 100.0
DEADLINE_SECONDS = 2.0
TOLD_BUDGET_MS = (DEADLINE_SECONDS + 2.0) * 1e3

PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.002


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build_fake_nvml(folder / "library")
        for kind in ("FIFO", "file"):
            yield from _kernel_events(_fresh(folder / kind), library, kind, 1 if options.quick else GPUS)
        answers: list[float] = []
        rounds = range(1 if options.quick else 3)
        told = [_wedged_call(_fresh(folder / f"wedged-{gpu}"), library, gpu, answers) for gpu in rounds]
        yield timing(f"wedged call, deadline {DEADLINE_SECONDS:g} s: call to told", told, TOLD_BUDGET_MS)
        yield timing("wedged call: answers of HTTP meanwhile", answers, ANSWER_BUDGET_MS)


def _kernel_events(folder: Path, library: Path, kind: str, rounds: int) -> Iterator[Figure]:
    """Yield from the record of an XID 79, on one device after the other, until state file and metrics page tell it."""
    log = folder / "kmsg"
    if kind == "FIFO":
        os.mkfifo(log)
    else:
        log.touch()
    machine = FakeNvml(folder / "machine", library)
    configuration = f'[kernel_log]\npath = "{log}"\n[load]\nprobe = "off"\n'
    to_state, to_metric = [], []
    with RunningAgent(folder, configuration, environment=machine.environment, interval_seconds=10) as agent:
        status = agent.wait_for_verdict("ok")
        gpus = [device for device in status["devices"] if device["vendor"] == "nvidia"]
        state = agent.runtime_dir / "state"
        for number, gpu in enumerate(gpus[:rounds]):
            address = gpu["pci"].removesuffix(".0")
            began = _tell(
                log, f"3,{number},{time.monotonic_ns() // 1000},-;NVRM: Xid (PCI:{address}): 79, pid=1, lost\n"
            )
            to_state.append(_until(_Told(state, gpu["id"])) - began)
            to_metric.append(_until(_Exported(agent.url, gpu["id"])) - began)
    yield timing(f"kernel log, a {kind}: event to state file", to_state, EVENT_BUDGET_MS)
    yield timing(f"kernel log, a {kind}: event to metric", to_metric, EVENT_BUDGET_MS)


def _wedged_call(folder: Path, library: Path, gpu: int, answers: list[float]) -> float:
    """Return the seconds from a call that hangs until the status says so; add how long *answers* took meanwhile."""
    machine = FakeNvml(folder / "machine", library)
    configuration = (
        f'[agent]\ndeadline_seconds = {DEADLINE_SECONDS}\n[kernel_log]\nenabled = false\n[load]\nprobe = "off"\n'
    )
    with RunningAgent(folder, configuration, environment=machine.logged_environment, interval_seconds=2) as agent:
        agent.wait_for(lambda status: status["verdict"] != "unknown" or "starting" not in status["reason"])
        machine.hang("", gpu)

        def is_told() -> bool:
            began = time.monotonic()
            page = _get(f"{agent.url}/api/v1/status")
            _get(f"{agent.url}/metrics")
            answers.append((time.monotonic() - began) / 2)
            return "has not returned" in page

        told = _until(is_told)
        # The fake notes every call before it hangs, so the last note is as old as the call that hangs.
        return told - (time.monotonic() - (time.time() - machine.log.stat().st_mtime))


class _Told:
    """Whether the state file at *path* says that *device* is degraded: what only a text says closes no gate."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._device = device

    def __call__(self) -> bool:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return any(self._device in line and " degraded " in line for line in lines)


class _Exported:
    """Whether the metrics page at *url* has the XID of *device*."""

    def __init__(self, url: str, device: str) -> None:
        self._url = url
        labels = f'check="kernel-log",code="text.nvidia.xid.79",device="{device}",'
        self._wanted = re.compile(rf"^nodevet_episode_active{{[^}}]*{re.escape(labels)}", re.MULTILINE)

    def __call__(self) -> bool:
        return self._wanted.search(_get(f"{self._url}/metrics")) is not None


def _tell(log: Path, record: str) -> float:
    """Append *record* to the *log* and return when."""
    with log.open("a", encoding="ascii") as file:
        began = time.monotonic()
        file.write(record)
    return began


def _until(holds: Callable[[], bool]) -> float:
    """Return the moment at which *holds* was seen to be true first."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if holds():
            return time.monotonic()
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"nothing was told within {PATIENCE_SECONDS:g} s")


def _fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - our own loopback address
        body: bytes = answer.read()
        return body.decode()


if __name__ == "__main__":
    main("latency", lambda options: list(measure(options)))
