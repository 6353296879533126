"""`nodevet readings`: an author sees what the agent would see, and gets the schema."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from fakes.site_tool import SettableTool, device, document, program, reading, temperature

from nodevet.agent.cli import main
from nodevet.checks.backends.command.schema import readings_schema


def configured(directory: Path, path: Path, more: str = "") -> list[str]:
    """Return the arguments for a configuration with the command acme."""
    file = directory / "nodevet.toml"
    file.write_text(f'[[agent.backends.commands]]\nname = "acme"\nargv = ["{path}"]\n{more}')
    return ["--config", str(file), "--state-dir", str(directory / "state"), "--runtime-dir", str(directory / "run")]


def test_saved_output_is_checked_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake is a line with file and place, and the exit code says that the agent would refuse it."""
    file = tmp_path / "out.json"
    file.write_text(json.dumps(document(device("a", temperature("hot"), reading("power", 5)))))
    assert main(["readings", "check", str(file)]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{file}: devices[0].readings[0].value: temperature_celsius is a number, found 'hot'"
    assert second.startswith(f"{file}: devices[0].readings[1].quantity: no quantity is called 'power', did you mean")


def test_what_is_accepted_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input works, and the author sees what was understood; a doubtful value has its own exit code."""
    hot = device("b", temperature(4500), {**reading("memory_total_bytes"), "status": "unsupported"})
    data = json.dumps(document(device("a"), hot)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["readings", "check", "-"]) == 1
    out = capsys.readouterr().out
    assert "standard input: devices[1].readings[0].value: temperature_celsius: 4500 is implausible" in out
    assert "standard input: devices[1]: has no measured value" in out
    assert "standard input: accepted, 2 devices, 0 events" in out
    assert out.splitlines()[-2].split() == ["a", "acme", "X1", "1", "of", "1"]
    assert out.splitlines()[-1].split() == ["b", "acme", "X1", "0", "of", "2"]


def test_a_configured_command_is_run_as_the_agent_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every group is run, and devices have the names that they have on the node."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"), group="fast")
    tool.print(device("a", reading("memory_total_bytes", 1 << 30)), group="slow")
    places = configured(tmp_path, tool.program, 'groups = ["fast", "slow"]\n')
    assert main(["readings", "check", "--command", "acme", *places]) == 0
    out = capsys.readouterr().out
    assert "command.acme, group fast: accepted, 1 device" in out
    assert "command.acme, group slow: accepted, 1 device" in out
    assert out.count("acme:a") == 2


def test_a_value_that_cannot_be_taken_costs_a_configured_command_its_reading_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints is taken as the agent takes it, with one value that was not measured."""
    tool = SettableTool(tmp_path)
    tool.print(device("a", temperature(float("nan")), reading("memory_total_bytes", 1 << 30)))
    main(["readings", "check", "--command", "acme", *configured(tmp_path, tool.program)])
    out = capsys.readouterr().out
    assert "command.acme, group fast: accepted, 1 device" in out
    assert out.splitlines()[-1].split()[-3:] == ["1", "of", "2"]


def test_a_command_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it did instead and its last words stand on lines of their own."""
    path = program(tmp_path / "tool", "#!/bin/sh\necho no driver >&2\nexit 4\n")
    assert main(["readings", "check", "--command", "acme", *configured(tmp_path, path)]) == 2
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == f"command.acme, group fast: command.acme ({path}) ended with status 4"
    assert second == "command.acme, group fast: its last line on standard error: no driver"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["check"], "check takes either a FILE"),
        (["check", "-", "--command", "acme"], "check takes either a FILE"),
        (["schema", "-"], "schema takes no file and no command"),
        (["check", "/nowhere/out.json"], "/nowhere/out.json cannot be read: No such file or directory"),
        (["check", "--command", "other"], "no command is called 'other'; [[agent.backends.commands]] has acme"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    """What cannot be done is told on standard error, with the exit code of wrong usage."""
    assert main(["readings", *words, *configured(tmp_path, tmp_path / "tool")]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the one that is committed and tested."""
    assert main(["readings", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(readings_schema()))
