"""Every command, on a node with eight fake GPUs under an agent and on a CPU-only node without one: text and JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from fakes.gpu_node import GpuNode, pci
from fakes.nvml.scenario import FakeNvml, uuid
from fakes.pages import SLEEPING_LOAD
from fakes.small_disk import printing_nowhere

from nodevet.agent import cli
from nodevet.agent.cli import commands
from nodevet.agent.commands import history
from nodevet.agent.control.client import Session
from nodevet.agent.terminal import exits
from nodevet.checks.engine.registry import installed
from nodevet.exporters.documents.types import BurnInDocument, StatusDocument

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\t X
"""
KERNEL_LOG = """\
[   10.000000] NVRM: Xid (PCI:0000:30:00): 79, pid=1234, name=python, GPU has fallen off the bus.
[   11.000000] usb 1-1: new device
[   12.000000] NVRM: Xid (PCI:0000:40:00): 31, pid=99, name=train, Ch 00000001
"""


class CommandLine:
    """Runs commands with the same directories, configuration and environment."""

    program: tuple[str, ...] = ("-m", "nodevet.agent.cli")

    def __init__(self, words: tuple[str, ...], environment: dict[str, str]) -> None:
        """Add *words* to every command that reads a configuration."""
        self._words = words
        self._environment = {**os.environ, **environment}

    def __call__(self, *words: str, stdin: str = "", code: int | None = 0, places: bool = True) -> str:
        """Run a command, expect the exit *code* and silence on standard error, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-I", *self.program, *words, *(self._words if places else ())],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=180,
            env=self._environment,
            check=False,
        )
        assert code in (None, done.returncode), done
        if words[0] != "burn-in":
            assert done.stderr == ""
        assert "\x1b" not in done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, fake_nvml_library: Path) -> Iterator[GpuNode]:
    """One healthy agent that every test of this file may ask."""
    with GpuNode(tmp_path_factory.mktemp("agent"), fake_nvml_library) as running:
        running.wait_for_verdict("ok")
        yield running


@pytest.fixture
def asked(agent: GpuNode) -> CommandLine:
    """The command line beside the agent."""
    return CommandLine(places(agent.directory), agent.machine.environment)


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    """The command line on a CPU-only node without an agent."""
    (tmp_path / "kernel.log").write_text("")
    (tmp_path / "nodevet.toml").write_text(
        f'[agent]\nnode_name = "node-2"\n[agent.backends]\nenabled = ["host"]\n'
        f'[kernel_log]\npath = "{tmp_path / "kernel.log"}"\n'
    )
    return CommandLine(places(tmp_path), {})


@pytest.fixture
def alone_with_gpus(tmp_path: Path, fake_nvml: FakeNvml) -> CommandLine:
    """The command line on a node with eight GPUs without an agent."""
    (tmp_path / "kernel.log").write_text("")
    (tmp_path / "nodevet.toml").write_text(
        f'[agent]\nnode_name = "node-3"\n[kernel_log]\npath = "{tmp_path / "kernel.log"}"\n'
    )
    return CommandLine(places(tmp_path), fake_nvml.environment)


def places(folder: Path) -> tuple[str, ...]:
    """Return the arguments that name the directories in *folder*."""
    words = ("--config", folder / "nodevet.toml", "--state-dir", folder / "state", "--runtime-dir", folder / "run")
    return tuple(map(str, words))


def status_of(text: str) -> StatusDocument:
    """Return the status document in *text*, every field of which has the type that its schema says."""
    assert text.count("\n") <= 1
    document = msgspec.json.decode(text, type=StatusDocument)
    assert document.schema == "nodevet.status/1"
    return document


def test_overview_lists_every_command(alone: CommandLine) -> None:
    """With its summary and the exit codes."""
    text = alone("--help", places=False)
    assert [name for name in commands() if not re.search(rf"^  {name} +\w", text, re.MULTILINE)] == []
    assert "70 a bug in nodevet" in text
    assert re.fullmatch(r"nodevet \d+\.\d+\.\d+\S*\n", alone("--version", places=False))


@pytest.mark.parametrize("name", commands())
def test_every_command_explains_itself(alone: CommandLine, name: str) -> None:
    """Its help begins with its name and says what it does."""
    text = alone(name, "--help", places=False)
    assert text.startswith(f"usage: nodevet {name}")


def test_check_and_status_ask_the_agent(asked: CommandLine, agent: GpuNode) -> None:
    """Both are one answer, as text and as JSON."""
    check, status = status_of(asked("check", "--json")), status_of(asked("status", "--json"))
    assert (check.node, check.verdict, check.agent.started) == ("node-1", "ok", status.agent.started)
    assert [device.kind for device in check.devices].count("accelerator") == 8
    assert check.findings == ()
    lines = asked("status").splitlines()
    assert lines[0] == "node-1: ok"
    (row,) = [line for line in lines if pci(3) in line]
    assert re.split(r"  +", row) == ["accelerator 3", "NVIDIA H100 80GB HBM3", pci(3), "1765423000103", "ok"]
    assert lines[-1] == "load: probe is off (load.probe)"


def test_named_checks_judge_what_they_look_at(asked: CommandLine) -> None:
    """What none of them looks at is said to be not judged, and does not count."""
    document = status_of(asked("check", "thermal", "links", "--json"))
    assert {run.check for run in document.checks} == {"thermal", "links"}
    text = asked("check", "thermal", "links")
    assert text.startswith("node-1: ok")
    assert re.search(r"^memory .* not judged$", text, re.MULTILINE)


def test_check_list_names_every_check(alone: CommandLine) -> None:
    """With what it judges."""
    lines = alone("check", "--list").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [declared.name for declared in installed()]


def test_a_cpu_only_node_is_ok_without_an_agent(alone: CommandLine) -> None:
    """Its sockets are its devices; the exit code is the verdict's."""
    document = status_of(alone("check", "--json"))
    assert (document.node, document.verdict) == ("node-2", "ok")
    assert {device.kind for device in document.devices} >= {"node", "memory", "cpu"}
    assert alone("check").startswith("node-2: ok\n")


def test_a_node_with_gpus_is_judged_without_an_agent(alone_with_gpus: CommandLine, fake_nvml: FakeNvml) -> None:
    """Two looks confirm a fault, and name its device, its limit and what to do."""
    fake_nvml.set("temperature_margin.3", -2)
    text = alone_with_gpus("check", code=2)
    lines = text.splitlines()
    hot = "at the slowdown threshold (margin -2 °C, threshold -2 °C)"
    assert lines[0].startswith(f"node-3: failed: GPU 3 ({pci(3)}), sensor core: {hot}")
    assert lines[1] == "action: inspect the node"
    assert f"fail  temperature.slowdown  GPU 3 ({pci(3)})" in text
    assert re.search(r"open; limit <= -2 °C \(reported by the device\); since \d{4}-", text)


def test_devices_are_listed_with_identity(asked: CommandLine) -> None:
    """As a table and as a document of its own."""
    document = json.loads(asked("devices", "--json"))
    assert (document["schema"], document["node"]) == ("nodevet.devices/1", "node-1")
    gpus = [device for device in document["devices"] if device["kind"] == "accelerator"]
    assert [(gpu["id"], gpu["pci"], gpu["minor"]) for gpu in gpus] == [(uuid(n), pci(n), n) for n in range(8)]
    assert asked("devices").splitlines()[0].split() == ["DEVICE", "MODEL", "ADDRESS", "SERIAL", "VERDICT"]


def test_topology_of_this_node_and_of_a_saved_matrix(asked: CommandLine, tmp_path: Path) -> None:
    """Live it comes from the driver; saved it is what the file says; a worse link fails."""
    live = json.loads(asked("topo", "--json"))
    assert live["schema"] == "nodevet.topo/1"
    assert live["gpus"] == [f"GPU{slot}" for slot in range(8)]
    assert live["matrix"] == [["X" if a == b else "NV18" for b in range(8)] for a in range(8)]
    assert asked("topo").splitlines()[0].split()[:8] == live["gpus"]

    saved = json.loads(asked("topo", "--from", "-", "--json", stdin=MATRIX))
    assert (saved["gpus"], saved["matrix"]) == (["GPU0", "GPU1"], [["X", "NV18"], ["NV18", "X"]])
    assert (saved["nics"], saved["cpu_affinity"], saved["numa_affinity"]) == (["NIC0"], ["0-31", "32-63"], ["0", "1"])
    expected = tmp_path / "topo.txt"
    expected.write_text(MATRIX)
    worse = MATRIX.replace("NV18", "NV6")
    text = asked("topo", "--from", "-", "--expect", str(expected), stdin=worse, code=2)
    assert "GPU0 to GPU1: NV6, expected NV18" in text


def test_a_saved_kernel_log_is_read_from_a_file_and_from_input(alone: CommandLine, tmp_path: Path) -> None:
    """Every event with its line, code, device, severity and action; the worst gives the exit code."""
    file = tmp_path / "dmesg.txt"
    file.write_text(KERNEL_LOG)
    document = json.loads(alone("check", "kernel-log", "--from", str(file), "--json", code=2))
    assert document["schema"] == "nodevet.kernel-log/1"
    keys = ("line", "code", "pci", "action", "pid", "process")
    assert [tuple(event[key] for key in keys) for event in document["events"]] == [
        (1, "nvidia.xid.79", "0000:30:00", "reboot", 1234, "python"),
        (3, "nvidia.xid.31", "0000:40:00", "restart_app", 99, "train"),
    ]
    text = alone("check", "kernel-log", "--from", "-", stdin=KERNEL_LOG, code=2)
    assert text.startswith("line 1: fatal: nvidia.xid.79 on 0000:30:00, process python (1234): ")
    assert alone("check", "kernel-log", "--from", "-", stdin="nothing\n") == "no device event in this log\n"


@pytest.mark.parametrize("limit", ["-5", "1" * 30, "1e3", "", "\u0663"])
def test_a_limit_that_no_history_has_is_refused(limit: str) -> None:
    """Thirty digits ended it with a traceback, and a number below zero printed all of it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    history.configure(parser)
    with pytest.raises(argparse.ArgumentError, match="give a number from 0 to"):
        parser.parse_args([f"--limit={limit}"])


def test_history_begins_empty(asked: CommandLine) -> None:
    """Nothing happened to a healthy node."""
    assert asked("history") == "no finding yet\n"
    assert asked("history", "--device", "gpu5") == "no finding of gpu5 yet\n"
    document = {"schema": "nodevet.history/1", "simulated": False, "changes": [], "loads": [], "damaged_rows": 0}
    assert json.loads(asked("history", "--json")) == document


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xid", "79"], ["nvidia.xid.79", "drain and reboot the node", "a passed re-test"]),
        (["sxid", "20034"], ["nvidia.sxid.20034", "source: NVIDIA"]),
        (["reader.hung"], ["check freshness", "drain and reboot", "outcome: unmeasured; fail when it repeats,"]),
        (["reader.stuck"], ["outcome: fail, fault class: node"]),
        (["inventory.empty"], ["outcome: unmeasured", "clears on: the next good sample"]),
        (["kernel_log.lost_records"], ["outcome: skipped"]),
        (["reading.power_watts"], ["reading.power_watts: finding of the check freshness", "outcome: unmeasured"]),
        (["burn-in"], ["settings: none except enabled and mode", "reads: no reading of a device"]),
        (["agent.error"], ["an internal part of the agent failed", "outcome: unmeasured"]),
        (["check.error"], ["finding of any check;", "a check did not run", "the next good sample"]),
        (["findings.not_kept"], ["finding of the agent;", "500 open findings", "acknowledgement"]),
        (["device.unread"], ["outcome: unmeasured", "clears on: the next good sample, or replacement of the device;"]),
        (
            ["kernel_log.readable"],
            ["outcome: unmeasured", "clears on: the next good sample, or replacement of the device;"],
        ),
        (["device.lost"], ["check inventory", "reseat or replace the board"]),
        (["device.missing"], ["check inventory", "reboot the node", "fault class: hardware"]),
        (["memory.recovery_action"], ["action: as the next step says", "carry out the recovery action"]),
        (["thermal"], ["check thermal", "needed = 3", "temperature_celsius"]),
        (["throttle.hardware_thermal"], ["check throttle"]),
        (["power_watts"], ["power_watts (gauge, per power_scope)"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_explain_says_what_a_word_means(alone: CommandLine, words: list[str], said: list[str]) -> None:
    """Events, findings, checks and quantities."""
    text = alone("explain", *words, places=False)
    assert [part for part in said if part not in text] == []


def test_every_refusal_says_what_to_type(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name, a missing argument and a missing file are each answered with a next step."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/nowhere")
    for words, said in (
        (["explain", "foo"], "is not a code, check or quantity; give one such as xid 79"),
        (["explain"], "the following arguments are required: NAME"),
        (["config"], "the following arguments are required: {check,show}"),
        (["slurm"], "the following arguments are required: check;"),
        (["readings"], "the following arguments are required: {check,schema}"),
        (["report", "render", "/nowhere"], "give a readable file, or - for standard input"),
    ):
        assert cli.main(words) == exits.USAGE
        assert said in capsys.readouterr().err


def test_shown_configuration_is_one_that_is_accepted(alone: CommandLine, tmp_path: Path) -> None:
    """What `config show` prints may be saved and used as it is."""
    digest = alone("config", "check").split()[-1]
    (tmp_path / "nodevet.toml").write_text(alone("config", "show"))
    assert alone("config", "check").split()[-1] == digest


SMALL_BURN_IN = ("burn-in", "--plan", "probe", "--seconds", "1", "--dtype", "fp32", "--shape", "256,256,512")
"""The shape is that of the workload's own tests; test_docs_commands.py runs the plan's."""


@needs_torch
def test_a_burn_in_without_an_agent_verifies_and_gives_a_report(alone: CommandLine, tmp_path: Path) -> None:
    """The figures as text, the document in a file, and a page of it that needs nothing else."""
    file = tmp_path / "burn-in.json"
    alone.program = SLEEPING_LOAD
    text = alone(*SMALL_BURN_IN, "--output", str(file))
    lines = text.splitlines()
    assert lines[0] == "node-2: ok"
    assert lines[1].split()[:5] == ["DEVICE", "FORMAT", "RESULT", "TFLOPS", "%PEAK"]
    assert lines[2].split()[:3] == ["cpu-0", "fp32", "verified"]
    bound = r"error rate below 1/[1-9]\d* per device and format \(95 % confidence\)"
    assert re.fullmatch(rf"[1-9]\d* GEMMs verified, 0 wrong, {bound}", lines[-1])

    document = msgspec.json.decode(file.read_bytes(), type=BurnInDocument)
    assert (document.schema, document.plan, document.verdict) == ("nodevet.burn-in/1", "probe", "ok")
    assert document.verified.gemms > 0
    assert document.verified.mismatches == 0

    page = tmp_path / "report.html"
    assert alone("report", "render", str(file), "-o", str(page), places=False) == f"wrote {page}\n"
    assert "node-2" in page.read_text()
    assert links_of(page.read_text()) == []
    assert alone("report", "render", "-", stdin=file.read_text(), places=False) == page.read_text()


def links_of(page: str) -> list[str]:
    """Return everything that a browser would fetch for *page*."""
    found: list[str] = []

    class Fetched(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(
                str(value)
                for name, value in attrs
                if name in ("src", "href") and tag != "a" and not str(value).startswith(("data:", "#"))
            )

    Fetched().feed(page)
    return found


@needs_torch
def test_a_burn_in_runs_under_the_lease_of_the_agent(tmp_path: Path, fake_nvml_library: Path) -> None:
    """Refused while another load holds it; else the agent judges the results, and its status has them."""
    node = GpuNode(tmp_path, fake_nvml_library, more='[agent.backends]\nenabled = ["host"]\n')
    run = CommandLine(places(tmp_path), {})
    run.program = SLEEPING_LOAD
    words = (*SMALL_BURN_IN, "--json")
    with node:
        node.wait_for_verdict("ok")
        with Session(node.runtime_dir / "control.socket") as holder:
            holder.ask("lease", seconds=600.0)
            refused = node.command(*words)
            assert refused.returncode == 3
            assert refused.stderr == f"nodevet: burn-in: burn-in (pid {os.getpid()}) holds it\n"
            status = node.wait_for(lambda status: status["agent"]["load"].startswith("burn-in"))
            assert status["agent"]["load"] == "burn-in runs"  # a pid leaves over the socket alone
            node.seconds_until(lambda: node.state_file().probing, 5.0)

        node.wait_for(lambda status: not status["agent"]["load"].startswith("burn-in"))
        document = msgspec.json.decode(run(*words), type=BurnInDocument)
        assert (document.verdict, document.node) == ("ok", "node-1")
        assert document.verified.gemms > 0
        status = node.status()
        found = {result["metric"]: result["value"] for result in status["results"]}
        assert found["gemms_verified"] == document.verified.gemms
        assert "gemm fp32 on cpu (cpu-0): finished" in node.command("status").stdout


def test_status_watch_prints_again_when_something_changes(tmp_path: Path, fake_nvml_library: Path) -> None:
    """It ends with the agent."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.wait_for_verdict("ok")
        watch = subprocess.Popen(
            [sys.executable, "-I", "-m", "nodevet.agent.cli", "status", "--watch", "--every", "0.2", *places(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        guard = threading.Timer(30.0, watch.kill)
        guard.start()
        assert watch.stdout is not None
        assert watch.stdout.readline() == "node-1: ok\n"
        node.machine.fail_device(3)
        while not (line := watch.stdout.readline()).startswith("node-1: failed"):
            assert line, "the watch ended"
        assert f"GPU 3 ({pci(3)})" in line
        node.stop()
        _, error = watch.communicate(timeout=20)
        guard.cancel()
        assert watch.returncode == 3
        assert error.startswith("nodevet: no agent runs here")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["chekc"], exits.USAGE),
        (["burn-in", "--seconds", "0"], exits.USAGE),
        (["check", "--config", "/nowhere/nodevet.toml"], exits.CONFIGURATION),
        (["status", "--runtime-dir", "/nowhere"], exits.UNKNOWN),
        (["--version"], exits.UNKNOWN),
    ],
)
def test_an_exit_code_does_not_hang_on_a_line_that_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    """An exception at the end would make it 1, which is ``degraded``: a script would keep the node in service."""
    with printing_nowhere(monkeypatch):
        ended = cli.main(words)
    assert ended == code


def test_a_bug_that_cannot_be_told_has_the_code_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in what tells of it would make it 1."""
    ended = list[int]()
    monkeypatch.setattr(os, "_exit", ended.append)
    with printing_nowhere(monkeypatch):
        cli._bug(ValueError, ValueError("odd"), None)
    assert ended == [exits.SOFTWARE]
