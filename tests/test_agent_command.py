"""The real agent on a node whose accelerators only a command of the site knows: every surface as with any other."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from fakes.host_tree import node_files, pci_device, processor_files, write_tree
from fakes.running_agent import RunningAgent
from fakes.site_tool import SettableTool, device, program, reading, temperature

CONFIGURATION = """
[agent]
node_name = "node-1"
slow_interval_seconds = 1
deadline_seconds = {deadline}
[kernel_log]
path = "{log}"
[load]
probe = "off"
[agent.backends]
enabled = ["host"]
"""
COMMAND = """
[[agent.backends.commands]]
name = "{name}"
argv = ["{program}"]
{more}
"""
GONE_SECONDS = 10.0
HANGS = "#!/bin/sh\necho $$ > {file}.new; mv {file}.new {file}\nsleep 60\n"


def agent(directory: Path, *commands: str, deadline_seconds: float = 2.0) -> RunningAgent:
    """Return an agent that reads the host and *commands*, tables of the configuration."""
    log = directory / "kernel.log"
    log.write_text("")
    return RunningAgent(directory, CONFIGURATION.format(log=log, deadline=deadline_seconds) + "".join(commands))


def table(path: Path, name: str = "acme", more: str = "") -> str:
    """Return the table of a command in the configuration."""
    return COMMAND.format(name=name, program=path, more=more)


def verdicts(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the verdict of each accelerator."""
    return {entry["id"]: entry["verdict"] for entry in status["devices"] if entry["kind"] == "accelerator"}


def is_ready(status: Mapping[str, Any]) -> object:
    """Return whether the first round was judged."""
    return status["agent"]["ready"]


def test_heat_of_a_vendor_that_nobody_knows_is_found(tmp_path: Path) -> None:
    """The hot card fails with its reason, its twin stays ok, and metrics and state file say the same."""
    tool = SettableTool(tmp_path)
    tool.print(device("a", serial="S1"), device("b", serial="S2"))
    with agent(tmp_path, table(tool.program)) as running:
        status = running.wait_for(is_ready)
        assert (status["verdict"], verdicts(status)) == ("ok", {"acme:a": "ok", "acme:b": "ok"})

        tool.print(device("a", temperature(120), serial="S1"), device("b", serial="S2"))
        finding = running.wait_for_finding("temperature.slowdown")
        assert (finding["device"], finding["part"], finding["value"]) == ("acme:a", "sensor core", 120.0)
        status = running.wait_for_verdict("failed")
        assert verdicts(status) == {"acme:a": "failed", "acme:b": "ok"}
        metrics = running.get("/metrics")
        assert re.search(r'nodevet_device_info\{device="acme:a",.*model="X1".*serial="S1".*vendor="acme"', metrics)
        assert re.search(r'nodevet_device_state\{device="acme:a",state="failed"\} 1', metrics)
        assert re.search(r'nodevet_\w*temperature_celsius\{device="acme:a".*\} 120', metrics)
        assert "acme:a" in (running.runtime_dir / "state").read_text()


def test_memory_errors_and_events_of_a_command_count(tmp_path: Path) -> None:
    """A counter that grows and an event are findings, as those of a vendor that we know."""
    tool = SettableTool(tmp_path)
    block = {"kind": "memory_block", "name": "vendor:total"}

    def cards(errors: int) -> list[dict[str, Any]]:
        return [
            device("a", temperature(45), reading("ecc_uncorrected_errors", errors, part=block)),
            device("b", temperature(45), reading("ecc_uncorrected_errors", 0, part=block)),
        ]

    tool.print(*cards(0))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(*cards(1))
        found = running.wait_for_finding("memory.uncorrected")
        assert (found["device"], found["part"]) == ("acme:a", "memory_block vendor:total")
        flap = {"code": "link_flap", "sequence": 1, "text": "port 3 went down", "device": "b"}
        tool.print(*cards(1), events=[flap])
        assert running.wait_for_finding("command.acme.link_flap")["device"] == "acme:b"


def test_a_command_that_hangs_is_told_and_hides_nobody(tmp_path: Path) -> None:
    """Its node is unknown with the reason; the other command and the host are judged; nothing is left at the end."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"))
    file = tmp_path / "pid"
    hang = program(tmp_path / "hang", HANGS.format(file=file))
    with agent(tmp_path, table(tool.program), table(hang, "stuck", "timeout_seconds = 1.5")) as running:
        status = running.wait_for(
            lambda status: verdicts(status).get("acme:a") == "ok" and "did not end within 1.5 s" in status["reason"]
        )
        assert status["verdict"] == "unknown"
        assert f"command.stuck ({hang}) did not end within 1.5 s, it printed nothing" in status["reason"]
        assert "next: nodevet readings check --command stuck" in status["reason"]
        assert running.stop() < 2.0
    until(lambda: members(file) == [])


def test_a_command_ends_with_an_agent_that_was_killed(tmp_path: Path) -> None:
    """The lifeline of the reader reaches the command in the middle of its run."""
    file = tmp_path / "pid"
    hang = program(tmp_path / "hang", HANGS.format(file=file))
    with agent(tmp_path, table(hang, "stuck", "timeout_seconds = 50"), deadline_seconds=60.0) as running:
        until(file.exists)
        assert members(file) != []
        running.kill()
        until(lambda: members(file) == [])


def test_a_card_that_is_not_listed_any_more_is_unknown_until_it_is_listed_again(tmp_path: Path) -> None:
    """The tool that the script asks may have been killed. Only where the script says so is the card lost."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"), device("b"))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(device("a"))
        status = running.wait_for(lambda status: "does not print it any more" in status["reason"])
        assert (status["verdict"], status["hard"]) == ("unknown", False)
        tool.print(device("a"), device("b"))
        running.wait_for_verdict("ok")
        lost = {**device("b"), "readings": [], "failure": {"kind": "lost", "detail": "fell off the bus"}}
        tool.print(device("a"), lost)
        assert running.wait_for_finding("device.lost")["device"] == "acme:b"
        assert running.wait_for_verdict("failed")["hard"]


def test_a_script_that_names_its_cards_otherwise_loses_none(tmp_path: Path) -> None:
    """Those that tell a serial go on; those that tell nothing are unknown, and the state file closes no gate."""
    (tmp_path / "other").mkdir()
    told, silent = SettableTool(tmp_path), SettableTool(tmp_path / "other")
    told.print(device("a0", serial="S1"), device("a1", serial="S2"))
    silent.print(device("b0"), device("b1"))
    with agent(tmp_path, table(told.program), table(silent.program, "silent")) as running:
        running.wait_for_verdict("ok")
        silent.print(device("c0"), device("c1"))
        status = running.wait_for(lambda status: "the script was changed" in status["reason"])
        assert (status["verdict"], status["hard"]) == ("unknown", False)
        told.print(device("a1", temperature(120), serial="S1"), device("a2", serial="S2"))
        assert running.wait_for_finding("temperature.slowdown")["device"] == "acme:a0"
        status = running.status()
        missing = {found["device"] for found in status["findings"] if found["code"] == "device.missing"}
        assert missing == {"silent:b0", "silent:b1"}
        assert {"acme:a0", "acme:a1", "silent:c0", "silent:c1"} <= set(verdicts(status))
        state = (running.runtime_dir / "state").read_text()
        assert not [line for line in state.splitlines() if "silent:" in line and line.split()[4] != "soft"]


def test_a_command_without_devices_is_no_proof_of_health(tmp_path: Path) -> None:
    """Who configures a command says that there is something to read; `required = false` says otherwise."""
    tool = SettableTool(tmp_path)
    tool.print()
    (tmp_path / "other").mkdir()
    with agent(tmp_path, table(tool.program)) as running:
        status = running.wait_for(is_ready)
        assert status["verdict"] == "unknown"
        assert f"command.acme ({tool.program}) lists no device" in status["reason"]
    with agent(tmp_path / "other", table(tool.program, more="required = false")) as running:
        assert running.wait_for(is_ready)["verdict"] == "ok"


def test_commands_are_settings_like_others(tmp_path: Path) -> None:
    """A bad table is refused at a reload and nothing changes; a good one is told to wait for the next start."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        good = running.configuration_file.read_text()
        assert running.process is not None
        running.configuration_file.write_text(good + table(Path("relative"), "two"))
        running.process.send_signal(signal.SIGHUP)
        status = running.wait_for(lambda status: "reload refused" in status["agent"]["configuration_message"])
        assert 'commands[1].argv[0]: found "relative"' in status["agent"]["configuration_message"]
        running.configuration_file.write_text(good + table(tool.program, "two"))
        running.process.send_signal(signal.SIGHUP)
        status = running.wait_for(lambda status: "next restart" in status["agent"]["configuration_message"])
        assert (status["verdict"], verdicts(status)) == ("ok", {"acme:a": "ok"})


def test_a_one_shot_reads_commands_too(tmp_path: Path) -> None:
    """Without an agent, `nodevet check` runs the command itself and finds the same."""
    tool = SettableTool(tmp_path)
    tool.print(device("a", temperature(120)))
    done = agent(tmp_path, table(tool.program)).command("check", "thermal")
    assert done.returncode == 2, done.stderr
    assert "acme:a" in done.stdout


def test_a_one_shot_counts_errors_that_go_on(tmp_path: Path) -> None:
    """A link with three hundred checksum errors a second, and nothing else wrong: exit code 1, with their rate."""
    told = device("a", temperature(45), reading("link_crc_errors", "ERRORS", part={"kind": "link", "index": 0}))
    text = json.dumps({"schema": "nodevet.readings/1", "devices": [told]}).replace(
        '"ERRORS"', "$((milliseconds / 10 * 3))"
    )
    counting = program(tmp_path / "counting", f"#!/bin/bash\nmilliseconds=$(date +%s%3N)\ncat << END\n{text}\nEND\n")
    done = agent(tmp_path, table(counting)).command("check", "links")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CRC errors per second, limit 100" in done.stdout


def test_boards_on_the_bus_that_no_command_lists_are_not_passed_over(tmp_path: Path) -> None:
    """The kernel shows two Gaudi boards: one that the command does not list leaves the node unknown, and says why."""
    boards = ("0000:4d:00.0", "0000:4e:00.0")
    files = node_files() | processor_files(1, 2, 1, vendor="GenuineIntel", model="Intel(R) Xeon(R) Platinum 8380")
    for address in boards:
        files |= pci_device(address, "0x1da3", "0x1020", "0x120000", driver="habanalabs")
    root = write_tree(tmp_path / "root", files)
    tool = SettableTool(tmp_path)
    gaudi = [device(address, pci=address, vendor="habana", model="HL-225") for address in boards]
    tool.print(gaudi[0])
    running = agent(tmp_path, table(tool.program, "gaudi"))
    text = running.configuration_file.read_text()
    running.configuration_file.write_text(text.replace("[agent]\n", f'[agent]\nroot = "{root}"\n', 1))
    with running:
        status = running.wait_for(is_ready)
        assert status["verdict"] == "unknown"
        assert "1 habana accelerator, not read: 0000:4e:00.0 (bound to habanalabs)" in status["reason"]
        assert "add a command backend" in status["reason"]
        tool.print(*gaudi)
        status = running.wait_for_verdict("ok")
        assert verdicts(status) == dict.fromkeys(boards, "ok")


def members(file: Path) -> list[int]:
    """Return the processes that are left of the command whose process id stands in *file*."""
    leader = int(file.read_text())
    return [pid for pid in psutil.pids() if _leader(pid) == leader]


def _leader(pid: int) -> int | None:
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getpgid(pid)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def until(happens: Callable[[], object]) -> None:
    """Wait until *happens* says yes."""
    end = time.monotonic() + GONE_SECONDS
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_device_that_a_command_prints_twice_costs_no_other_one(tmp_path: Path) -> None:
    """The third one is at 120 degrees: before, no device of the command was judged."""
    tool = SettableTool(tmp_path)
    healthy = [device(name, serial=f"S-{name}") for name in "abc"]
    tool.print(*healthy)
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(healthy[0], healthy[1], healthy[1], device("c", temperature(120), serial="S-c"))
        status = running.wait_for(lambda status: verdicts(status).get("acme:b") == "unknown", 10.0)
        running.wait_for(lambda status: verdicts(status).get("acme:c") == "failed", 10.0, "the hot device is not told")
        assert verdicts(status)["acme:a"] == "ok"
