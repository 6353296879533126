"""A child of the agent that behaves as a JSON file says; the file may change while it runs.

Run as ``python -I scripted_child.py SCRIPT --descriptor N --progress M``. Keys of the script:
``start`` how loading goes, ``devices`` their ids, ``read`` what happens at a device (``device`` -> behaviour), ``burn``
what a workload does, ``map`` and ``share`` files that it has mapped from its start on, with ``_late`` from its first
round on. What it was asked is appended to the file named by ``log``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.reader_main import prove_readable
from nodevet.checks.backends.standstill import end_at_crashes, stand_still_at_crashes
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import Closed
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Event,
    Failure,
    FailureKind,
    Reading,
    Result,
    ResultState,
    Sample,
)
from nodevet.checks.core.wire import (
    PROTOCOL,
    Burn,
    EventMessage,
    Failed,
    Note,
    ProgressMessage,
    Read,
    Ready,
    ResultMessage,
    RoundDone,
    Sampled,
    Start,
    Stop,
)
from nodevet.checks.ipc.worker import ChildEnd, become_child

CLOCK = SystemClock()
GROUPS = ("fast", "slow")


class Child:
    """The child: every answer follows the script as it reads at that moment."""

    def __init__(self, script: Path, end: ChildEnd) -> None:
        """Follow *script* over *end*."""
        self._file = script
        self._end = end
        self._skip: tuple[str, ...] = ()
        self._last: tuple[str, ...] = ()
        self._listed: tuple[Device, ...] = ()
        self._is_late = False

    @property
    def script(self) -> dict[str, Any]:
        """The script as it is now."""
        result: dict[str, Any] = json.loads(self._file.read_text())
        return result

    def log(self, line: str) -> None:
        """Append *line* to the log."""
        with Path(self.script["log"]).open("a") as file:
            file.write(line + "\n")

    def misbehave(self, behaviour: str, call: str) -> None:
        """Do what *behaviour* names inside of *call*; an unknown one does nothing. ``idle_`` does it outside."""
        if behaviour.startswith("idle_"):
            self._end.progress.write("between two calls")
        else:
            self._end.progress.call(call)
        match behaviour.removeprefix("idle_"):
            case "hang":
                while True:
                    signal.pause()
            case "abort":
                os.write(2, b"driver: assertion failed in fake_call\n")
                os.abort()
            case "exit":
                sys.exit(3)
            case "segv" | "bus" | "ill" | "kill" | "term":
                os.kill(os.getpid(), getattr(signal, f"SIG{behaviour.removeprefix('idle_').upper()}"))
                signal.pause()
            case "no_room":  # as a library that does not look whether it was given memory
                with contextlib.suppress(OSError, ValueError):
                    mmap.mmap(-1, 1 << 34, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    return
                ctypes.string_at(0)
            case "cut":  # a page of its own that its file has no more
                with tempfile.TemporaryFile() as file:
                    file.write(bytes(4096))
                    file.flush()
                    page = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                    file.truncate(0)
                    page[0] = 1
            case "null":
                ctypes.string_at(0)
            case "no_file":  # as a library that does not look whether a file could be opened
                try:
                    self._kept = [Path("/dev/null").open() for _ in range(40)]  # noqa: SIM115
                except OSError:
                    ctypes.string_at(0)
            case "touch":
                self._shared[0] = 1
            case "poll_lock":  # asks again and again, as a lock with a limit of time does
                while not self._shared[-1]:
                    time.sleep(0.01)
            case "lock":  # as AMD SMI does in each call of a board
                mutex = ctypes.c_char.from_buffer(self._shared)
                ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(mutex))
                ctypes.CDLL(None).pthread_mutex_unlock(ctypes.byref(mutex))
            case "flock" | "lockf":  # as a library that keeps two programs from one board
                lock = fcntl.flock if behaviour == "flock" else fcntl.lockf
                with Path(self.script["lock_of_file"]).open("r+") as file:
                    lock(file, fcntl.LOCK_EX)
            case "no_memory":
                os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
                os.abort()
            case "no_threads":
                os.write(2, b"  what():  Resource temporarily unavailable\n")
                os.abort()
            case "say":
                os.write(2, self.script["words"].encode() + b"\n")
                os.abort()
            case "interpreter":
                os.write(2, b"Fatal Python error: none_dealloc: deallocating None\n")
                os.abort()
            case "helper":  # as libnvidia-ml, which runs nvidia-modprobe
                helper = subprocess.Popen([sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 19)"])
                helper.wait()
            case "fatal":  # as the interpreter does it: the line about the cause, and all that it was in
                at_depth(lambda: ctypes.pythonapi.Py_FatalError(b"none_dealloc: deallocating None"), 30)
            case "talkative":
                os.write(2, b"what():  std::bad_alloc\n" + b"#0 0x7f in library\n" * 30)
                os.abort()
            case "linker":
                os.write(2, b"python3: /lib/libc.so.6: version `GLIBC_2.38' not found (required by python3)\n")
                sys.exit(1)
            case "import_error":
                os.write(2, b"ModuleNotFoundError: No module named 'nodevet.checks.core.parts'\n")
                sys.exit(1)
            case "raise":
                raise ValueError("invalid literal for int() with base 16: ''")
            case "garbage":
                os.write(self._end.channel.fileno(), b"\xff" * 64)
                signal.pause()
            case "hang_up":
                os.close(self._end.channel.fileno())
                signal.pause()
            case "flood":
                for number in range(20000):
                    self._end.channel.send(EventMessage(event(number)))
            case "complain":
                os.write(2, b"cannot allocate memory, Too many open files, ImportError: no such thing\n")
            case "steps":  # calls that return, each when the test lets it; the library waits for nothing else
                signal.signal(signal.SIGALRM, lambda *_: None)
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
                for number in range(self.script["steps"]):
                    self._end.progress.call(f"{call} part {number}")
                    while not (go := Path(f"{self.script['log']}.{number}")).exists():
                        signal.pause()
                    go.unlink()
                    self._end.progress.returned()
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            case "chatter":
                os.write(1, b"a vendor library prints\n" * 5000)
        self._end.progress.returned()

    def run(self) -> None:
        """Serve until told to stop."""
        while True:
            message = self._end.channel.receive()
            match message:
                case Start():
                    try:
                        self.start(message)
                    except BackendError as error:
                        self._end.channel.send(Failed(error.failure))
                case Read():
                    self.read(message)
                case Burn():
                    self.burn(message)
                case Stop():
                    self.log("stop")
                    return

    def start(self, start: Start) -> None:
        """Load, or fail to."""
        self._skip, self._last = start.skip, start.last
        self.log(f"start skip={','.join(start.skip)} last={','.join(start.last)}")
        prove_readable([*start.prove, *self.script.get("unreadable", [])] if start.prove else [], self._end.progress)
        sends_itself_one = self.script.get("start") in ("bus", "segv", "ill")  # once: it goes on after a handler
        if start.stand_still and not sends_itself_one:
            stand_still_at_crashes()
        self.map("map", "share")
        behaviour = self.script.get("start", "ok")
        self.misbehave(behaviour, "fake_init")
        if behaviour in set(FailureKind):
            self._end.channel.send(Failed(Failure(FailureKind(behaviour), "scripted", of_driver=True)))
            return
        end_at_crashes()
        protocol = 99 if behaviour == "other_protocol" else PROTOCOL
        self._end.channel.send(Ready(self.devices(), GROUPS, {"driver": "1.0"}, protocol))

    def map(self, library: str, shared: str) -> None:
        """Map the files that the script has under these keys."""
        if library in self.script:  # as a library that is loaded
            with Path(self.script[library]).open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if shared in self.script:  # as a lock between processes in /dev/shm
            with Path(self.script[shared]).open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), 0)

    def devices(self) -> tuple[Device, ...]:
        """List the devices of the script anew: these are read from now on."""
        self._listed = tuple(
            Device(id=name, kind=DeviceKind.ACCELERATOR, vendor="fake", model="fake", backend="fake")
            for name in self.script["devices"]
        )
        return self._listed

    def read(self, request: Read) -> None:
        """Answer a round; what is loaded with the first call is loaded in the first."""
        if not self._is_late:
            self._is_late = True
            self.map("map_late", "share_late")
        names = [device.id for device in self._listed if device.id not in self._skip]
        for name in sorted(names, key=lambda name: name in self._last):
            behaviour = self.script.get("read", {}).get(name, "ok")
            self.misbehave(behaviour, f"fake_read({name}, {request.group})")
            if behaviour in set(FailureKind) and behaviour != "lost":
                self._end.channel.send(Failed(Failure(FailureKind(behaviour), "scripted", of_driver=True)))
                return
            if behaviour == "unreadable":
                os.write(self._end.channel.fileno(), b"\x00\x00\x00\x03\xc1\xc1\xc1")
                continue
            self._end.channel.send(Sampled(sample(name, request, lost=behaviour == "lost")))
        self._end.progress.write("idle")
        self._end.channel.send(RoundDone(request.group, request.round, self.devices()))

    def burn(self, burn: Burn) -> None:
        """Run a workload that takes no time."""
        self._end.channel.send(ProgressMessage(0.5, "half"))
        self._end.channel.send(Note("info", "working"))
        self.misbehave(self.script.get("burn", "ok"), f"fake_launch({burn.workload})")
        now = CLOCK.instant()
        result = Result(workload=burn.workload, devices=("a",), state=ResultState.FINISHED, started=now, ended=now)
        self._end.channel.send(ResultMessage(result))


def at_depth(work: Callable[[], object], frames: int) -> None:
    """Do *work* below so many *frames*."""
    if frames:
        at_depth(work, frames - 1)
    else:
        work()


def sample(device: str, request: Read, *, lost: bool) -> Sample:
    """A sample of *device* with one reading, or a lost device."""
    readings = () if lost else (Reading("temperature_celsius", 40.0),)
    failure = Failure(FailureKind.LOST, "scripted", of_driver=True) if lost else None
    return Sample("fake", request.group, device, request.round, CLOCK.instant(), 0.001, readings, failure=failure)


def event(number: int) -> Event:
    """An event of the driver."""
    return Event(code="fake.event", source="fake", time=CLOCK.instant(), text=f"event {number}")


def main() -> None:
    """Run until the parent stops us or is gone."""
    script = Path(sys.argv[1])
    try:
        Child(script, become_child(sys.argv[2:])).run()
    except Closed:
        with Path(json.loads(script.read_text())["log"]).open("a") as log:
            log.write("orphan\n")


if __name__ == "__main__":
    main()
