"""What a state file says to a job, as the shell of deploy/slurm and as the Python reader understand it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nodevet.exporters.statefile.reader import Absent, DeviceState, StateFile, boot_id, parse

__all__ = ["NO_VERDICT", "said_by_python", "said_by_shell"]

NO_VERDICT = "no verdict"

READ_ALL = """
here=$1
. "$here/gate.sh"
read_settings "$here/gate.conf"
shift
order=minor
while read -r state_file; do
    wanted=" 0 1 "
    if read_verdict; then
        echo "${fault:+fault} ${refusal:+refusal} ${unpermitted:+unpermitted} ${doubt:+doubt} $load $agent"
    else
        echo "no verdict"
    fi
done
"""
"""Runs in the directory of the scripts; a line of words per state file that is named on standard input."""


def said_by_shell(shell: Sequence[str], scripts: Path, files: Sequence[Path]) -> list[str]:
    """Return what each of *files* says to a job with GPUs 0 and 1, read by one process of *shell*."""
    program = shutil.which(shell[0]) or shell[0]
    done = subprocess.run(
        [program, *shell[1:], "-c", READ_ALL, "read", str(scripts)],
        input="".join(f"{path}\n" for path in files),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def said_by_python(text: str, now: float) -> str:
    """Return the same for the *text* of a file, by the Python reader, on a machine that is up for *now* seconds."""
    file = parse(text)
    if isinstance(file, Absent) or file.boot_id != boot_id() or file.simulated or now >= file.expires_uptime:
        return NO_VERDICT
    met = [device for device in file.devices if device.kind != "accelerator" or _may_be_the_jobs(device)]
    carried = {device.reach for device in file.devices if _word(device.state, device.reach)}
    words = {_word(device.state, device.reach) for device in met}
    if file.reach not in carried:
        words.add(_word(file.state, file.reach))
    if _is_doubtful(file, met, now):
        words.add("doubt")
    kept = [word for word in ("fault", "refusal", "unpermitted", "doubt") if word in words]
    return " ".join([*kept, "probing" if file.probing else "idle", file.agent])


def _may_be_the_jobs(device: DeviceState) -> bool:
    return device.minor in (0, 1) or (device.minor is None and device.state == "failed")


def _word(state: str, reach: str) -> str:
    if reach == "refused" and state in ("failed", "unknown"):
        return "refusal"
    if reach == "unpermitted" and state in ("failed", "unknown"):
        return "unpermitted"
    return "fault" if (state, reach) == ("failed", "hard") else ""


def _is_doubtful(file: StateFile, met: Sequence[DeviceState], now: float) -> bool:
    present = {device.minor for device in met if device.kind == "accelerator"}
    unknown = any(
        device.state == "unknown"
        and device.reach not in ("refused", "unpermitted", "observed")
        and device.kind in ("node", "accelerator")
        for device in met
    )
    return unknown or not {0, 1} <= present or now >= file.fresh_until_uptime
