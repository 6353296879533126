"""A load child that does what its argument says for each number format, without any load.

Run as ``python -I scripted_load.py '{"fp32": "finish", "bf16": "die"}' --descriptor N --progress M``: ``finish`` is a
verified result, ``large`` one of 150 kB, ``long`` one of ten minutes, as warm as any wrong one, ``no_format`` and
``no_torch`` are refusals, ``share`` tells its duration, ``hang`` never answers, ``deaf`` does not even hear SIGTERM,
``drain`` verifies what waits when it is stopped,
``die`` ends at once.
``on:END`` tells of 5000 products compared in 700 s before it does END.
``wrong:END`` tells of a wrong result first, then does END: one of those, ``abort``, ``segv``, ``kill``, ``exit``,
``disk``, ``garbage``, ``forget``. ``warm:wrong:END``: one whose heat and power were recorded.
``copy:FROM:TO:WORD`` copies a file of the parent once that tells of a format with
this standing, then finishes; ``until:FILE:END`` waits for a file before it does END, ``touch:FILE:END`` makes
FILE-DEVICE first.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from nodevet.checks.core.errors import Closed
from nodevet.checks.core.model import Instant, Metric, Result, ResultState
from nodevet.checks.core.wire import Burn, Channel, Found, ProgressMessage, ResultMessage, Stop
from nodevet.checks.ipc.worker import become_child

LARGE = {"tflops": [[number / 7, number / 3] for number in range(4000)]}
"""More than all devices of a node tell together."""

VERIFIED = {"gemms_verified": 10, "mismatches": 0, "self_test_planted": 3, "self_test_found": 3}

LONG = {**VERIFIED, "gemms_verified": 6000, "gemms_checked": 6000, "measured_seconds": 600.0}
WARM = {"temperature_celsius": 70.0, "power_watts": 600.0}


def now() -> Instant:
    """Return the present moment of a boot that is called after nothing."""
    return Instant("boot", time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())


BEGAN = now()


def result(burn: Burn, state: ResultState, **conditions: Any) -> Result:
    """Return the result of *burn*."""
    figures = VERIFIED if state is ResultState.FINISHED else {}
    return Result(
        workload=burn.workload,
        devices=(burn.parameters["device"],),
        dtype=burn.parameters["dtype"],
        state=state,
        started=BEGAN,
        ended=now(),
        detail=conditions.get("refusal", ""),
        conditions=conditions,
        metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
    )


def long(burn: Burn) -> Result:
    """Return a result of *burn* in this boot that disproves what was wrong before."""
    metrics = tuple(Metric(name, value, "count") for name, value in LONG.items())
    began = msgspec.structs.replace(now(), boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return msgspec.structs.replace(result(burn, ResultState.FINISHED, **WARM), metrics=metrics, started=began)


def wrong(burn: Burn, **conditions: Any) -> Result:
    """Return what is known of *burn* once it found three wrong products."""
    known = result(burn, ResultState.DIED, **conditions)
    figures = {"gemms_verified": 100, "gemms_checked": 120, "mismatches": 3, "measured_seconds": 1.0}
    metrics = tuple(Metric(name, value, "count") for name, value in figures.items())
    return msgspec.structs.replace(known, metrics=metrics, detail="a wrong result was found")


def end(how: str, message: Burn, channel: Channel) -> None:
    """Answer *message*, or come to an end, as *how* says."""
    match how:
        case "finish":
            channel.send(ProgressMessage(0.5, "measuring"))
            channel.send(ResultMessage(result(message, ResultState.FINISHED)))
        case "large":
            channel.send(ResultMessage(result(message, ResultState.FINISHED, curves=LARGE)))
        case "long":
            channel.send(ResultMessage(long(message)))
        case "share":
            told = message.parameters["duration_seconds"]
            channel.send(ResultMessage(result(message, ResultState.FINISHED, share=told)))
        case "no_format":
            channel.send(ResultMessage(result(message, ResultState.REFUSED, refusal="format")))
        case "no_torch":
            channel.send(ResultMessage(result(message, ResultState.REFUSED, refusal="device")))
        case "forget":
            channel.send(ResultMessage(result(message, ResultState.INTERRUPTED)))
        case "die" | "abort" | "kill" | "segv":
            numbers = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV}
            os.kill(os.getpid(), numbers.get(how, signal.SIGABRT))
        case "exit":
            os._exit(3)
        case "disk":
            Path("/dev/full").write_text("no space is left on this device")
        case "garbage":
            os.write(channel.fileno(), b"\xff" * 64)
            signal.pause()
        case "hang":
            signal.pause()
        case "deaf":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            while True:
                time.sleep(60)
        case "drain":
            while not isinstance(channel.receive(), Stop):
                pass
            drained = result(message, ResultState.INTERRUPTED)
            metrics = tuple(Metric(name, value, "count") for name, value in VERIFIED.items())
            channel.send(ResultMessage(msgspec.structs.replace(drained, metrics=metrics)))
            sys.exit()


def copy(source: Path, target: Path, standing: str) -> None:
    """Copy what the parent has written at *source* meanwhile, once it tells of a format of that *standing*."""
    while not (source.exists() and f'"standing":"{standing}"' in source.read_text()):
        time.sleep(0.01)
    shutil.copy(source, target)


def act(how: str, message: Burn, channel: Channel) -> None:
    """Do with *message* what *how* says, step by step."""
    match how.split(":"):
        case ["copy", source, target, standing]:
            copy(Path(source), Path(target), standing)
            end("finish", message, channel)
        case ["warm", "wrong", *then]:
            channel.send(Found(wrong(message, **WARM)))
            act(":".join(then), message, channel)
        case ["wrong", *then]:
            channel.send(Found(wrong(message)))
            act(":".join(then), message, channel)
        case ["on", *then]:
            channel.send(ProgressMessage(0.5, "measuring", {"gemms_checked": 5000, "measured_seconds": 700.0}))
            act(":".join(then), message, channel)
        case ["touch", file, *then]:
            Path(f"{file}-{message.parameters['device']}").touch()
            act(":".join(then), message, channel)
        case ["until", file, *then]:
            while not Path(file).exists():
                time.sleep(0.01)
            act(":".join(then), message, channel)
        case _:
            end(how, message, channel)


def main() -> None:
    """Answer each request as the script says."""
    script = json.loads(sys.argv[1])
    channel = become_child(sys.argv[2:]).channel
    while not isinstance(message := channel.receive(), Stop):
        assert isinstance(message, Burn)
        act(script[message.parameters["dtype"]], message, channel)


if __name__ == "__main__":
    try:
        main()
    except Closed:
        sys.exit(1)
