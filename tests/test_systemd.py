"""The unit is accepted without a word by systemd, stays hardened, and refuses what would blind the agent."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nodevet.agent.cli import main
from nodevet.agent.config.settings import AgentSettings
from nodevet.agent.terminal import exits

START_SECONDS = 10
"""An agent listens within a second or two; a busy machine takes longer."""

EXPOSURE_LIMIT = 24
"""Tenths of systemd-analyze's exposure score (0 safe, 100 unsafe); the unit stands at 23."""

WOULD_BREAK = {
    "IPAddressDeny": "silences a configured listen address",
    "MemoryDenyWriteExecute": "breaks libffi callbacks and compiled kernels",
    "MemoryHigh": "throttles the probe's children",
    "MemoryMax": "kills the probe's children",
    "PrivateDevices": "hides accelerators",
    "PrivateNetwork": "hides the host's interfaces",
    "PrivateUsers": "takes root's ownership away",
    "ProcSubset": "hides /proc/uptime and /proc/meminfo",
    "ProtectKernelLogs": "hides /dev/kmsg",
    "ProtectProc": "hides the processes that hold a device",
}


@pytest.fixture
def analyze() -> str:
    """The path of systemd-analyze, which works without systemd running."""
    path = shutil.which("systemd-analyze")
    if path is None:
        pytest.skip("systemd-analyze is not installed")
    return path


@pytest.fixture
def unit(repository: Path, tmp_path: Path) -> Path:
    """A copy of the unit whose command exists on this machine, as systemd demands of it."""
    text = (repository / "systemd" / "nodevet.service").read_text()
    copy = tmp_path / "nodevet.service"
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text))
    return copy


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def _verify(analyze: str, unit: Path) -> subprocess.CompletedProcess[str]:
    return _run(analyze, "verify", "--man=no", str(unit))


def _exposure(analyze: str, unit: Path) -> subprocess.CompletedProcess[str]:
    return _run(analyze, "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_LIMIT}", str(unit))


def _settings(text: str) -> dict[str, list[str]]:
    """Every directive of the unit with its values, in order; comments do not count."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", text):
        found.setdefault(name, []).append(value)
    return found


def test_systemd_accepts_the_unit_without_a_word(analyze: str, unit: Path) -> None:
    """systemd-analyze verify ends with 0 and prints nothing: unknown keys and bad values are only printed."""
    verified = _verify(analyze, unit)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("fault", ["Frobnicate=yes", "WatchdogSec=soon", "SystemCallFilter=@nosuchset"])
def test_a_wrong_directive_is_noticed(analyze: str, unit: Path, fault: str) -> None:
    """An unknown key, a wrong value and an unknown set each leave a word on standard error."""
    unit.write_text(unit.read_text().replace("[Service]\n", f"[Service]\n{fault}\n"))
    assert _verify(analyze, unit).stderr != ""


def test_exposure_stays_below_its_limit(analyze: str, unit: Path) -> None:
    """The score of systemd-analyze security does not rise unnoticed."""
    scored = _exposure(analyze, unit)
    assert scored.returncode == 0, scored.stdout


def test_a_dropped_protection_raises_the_exposure_above_its_limit(analyze: str, unit: Path) -> None:
    """Without the capability bound the limit is exceeded."""
    unit.write_text(re.sub(r"(?m)^CapabilityBoundingSet=.*\n", "", unit.read_text()))
    assert _exposure(analyze, unit).returncode != 0


@pytest.mark.parametrize("directive", WOULD_BREAK)
def test_directive_that_would_break_the_agent_is_absent_and_explained(unit: Path, directive: str) -> None:
    """A directive that was tried and rejected is not set, and a comment says why."""
    text = unit.read_text()
    assert directive not in _settings(text), WOULD_BREAK[directive]
    assert re.search(rf"(?m)^# No .*{directive}=", text)


def test_verdict_outlives_the_agent(unit: Path) -> None:
    """The runtime directory, and the state file in it, is preserved over stop and restart."""
    settings = _settings(unit.read_text())
    assert settings["RuntimeDirectory"] == ["nodevet"]
    assert settings["RuntimeDirectoryPreserve"] == ["yes"]


def test_a_killed_probe_child_does_not_stop_the_agent(unit: Path) -> None:
    """The kernel's kill of one child for memory is not answered by stopping the service."""
    assert _settings(unit.read_text())["OOMPolicy"] == ["continue"]


@pytest.mark.parametrize("device", ["char-nvidia* rw", "char-drm rw", "char-kfd rw", "char-accel rw", "/dev/kmsg r"])
def test_device_is_reachable(unit: Path, device: str) -> None:
    """The closed device list names each vendor's nodes and the kernel log, which is only read."""
    assert device in _settings(unit.read_text())["DeviceAllow"]


def test_whatever_ended_the_agent_or_refused_its_start_it_comes_back(unit: Path) -> None:
    """No refusal is counted to a limit, and SIGTERM of some tool is no order; what a person must correct is final."""
    settings = _settings(unit.read_text())
    assert settings["StartLimitIntervalSec"] == ["0"]
    assert settings["Restart"] == ["always"]
    assert settings["RestartPreventExitStatus"] == [f"{exits.USAGE} {exits.CONFIGURATION}"]


def test_a_restart_is_within_the_life_of_a_state_file_and_no_load(unit: Path) -> None:
    """A crash leaves no gap in which a prolog finds no verdict, and a start that is refused for hours costs little."""
    (seconds,) = _settings(unit.read_text())["RestartSec"]
    agent = AgentSettings(state_dir="/", runtime_dir="/", node_name="n")
    assert 10 <= float(seconds) < 3 * agent.interval_seconds + agent.deadline_seconds - START_SECONDS


@pytest.mark.parametrize(("number", "code"), [(errno.EACCES, 78), (errno.EIO, 3), (errno.ESTALE, 3), (errno.ENFILE, 3)])
def test_only_what_a_person_must_correct_is_final(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a server that answers with an error now may answer well at the next start."""

    def refuse(_path: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("nodevet.agent.config.load._content", refuse)
    assert main(["config", "check", "--config", str(tmp_path / "nodevet.toml")]) == code
