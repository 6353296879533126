"""The settings of commands: every mistake is one line with its place, and what is accepted reads back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from nodevet.agent.config.command_specs import command_spec
from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration
from nodevet.agent.config.text import render
from nodevet.agent.daemon.assembly import cadences, engine_cadences
from nodevet.checks.core.errors import ConfigurationError

GOOD = """
[[agent.backends.commands]]
name = "gaudi"
argv = ["/usr/local/libexec/nodevet/gaudi-hl-smi", "--all"]
environment = { HABANA_LOGS = "/var/log/habana" }
groups = ["slow", "fast"]
timeout_seconds = 2.5
required = false

[[agent.backends.commands]]
name = "tpu"
argv = ["/opt/tpu/readings"]
"""

REFUSED = {
    'name = "Gaudi"': "name: found 'Gaudi', expected a lower-case word such as gaudi",
    'name = "a.b"': "name: found 'a.b', expected a lower-case word such as gaudi",
    'name = "tpu"': "name: another command is called 'tpu' already",
    'argv = ["hl-smi"]': 'argv[0]: found "hl-smi", expected an absolute path',
    "argv = []": "argv: found an empty list, expected a list with at least 1 entry, each text",
    'argv = "/bin/true"': 'argv: found "/bin/true", expected a list with at least 1 entry, each text',
    'argv = ["/bin/true", "\\u0000"]': "argv: holds a NUL byte, which no program can be given",
    "timeout_seconds = 5": "timeout_seconds: found 5, expected at most 4.8: ending one that hangs takes 0.2 s of",
    "timeout_seconds = 0": "timeout_seconds: found 0, expected a number from 0.1 to 600",
    'groups = ["fast", "fast"]': "groups: names a group twice",
    'groups = ["medium"]': 'groups[0]: found "medium", expected one of fast, slow',
    "groups = []": "groups: found an empty list",
    'environment = { "A B" = "x" }': "environment: found 'A B', expected the name of a variable",
    'environment = { NODEVET_GROUP = "x" }': "environment: found 'NODEVET_GROUP', expected the name of a variable",
    "environment = { PORT = 7 }": "environment: found a table",
    "shell = true": "shell: unknown key",
}


def load(tmp_path: Path, text: str) -> Configuration:
    """Load *text* as the configuration file."""
    file = tmp_path / "nodevet.toml"
    file.write_text(text)
    return load_configuration(file, (), environment={"HOME": "/home/ada"}, uid=1000)


def test_commands_are_taken_and_read_back(tmp_path: Path) -> None:
    """All settings arrive, defaults are filled in, and `config show` prints what reads back as the same."""
    found = load(tmp_path, GOOD)
    gaudi, tpu = found.agent.backends.commands
    assert found.agent.backends.names == (*found.agent.backends.enabled, "command.gaudi", "command.tpu")
    assert command_spec(gaudi, 5.0).groups == ("fast", "slow")
    assert (gaudi.run_seconds(5.0), gaudi.required) == (2.5, False)
    assert (tpu.run_seconds(5.0), tpu.required, tpu.groups, tpu.environment) == (3.5, True, ("fast",), {})
    shown = tomllib.loads(render(found))
    assert [entry["name"] for entry in shown["agent"]["backends"]["commands"]] == ["gaudi", "tpu"]
    assert load(tmp_path, render(found)).agent == found.agent


def test_a_command_is_expected_in_its_own_groups_alone(tmp_path: Path) -> None:
    """A command that has only the fast group is not missed in the slow one."""
    found = load(tmp_path, GOOD)
    rates = engine_cadences(found, cadences(found))
    assert {group for backend, group in rates if backend == "command.gaudi"} == {"fast", "slow"}
    assert {group for backend, group in rates if backend == "command.tpu"} == {"fast"}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_command_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    """One mistake gives one line that names the table, the key, what was found and what is allowed."""
    key = line.partition(" ")[0]
    keys = {"name": 'name = "acme"', "argv": 'argv = ["/bin/true"]', key: line}
    text = f"{GOOD}\n[[agent.backends.commands]]\n" + "\n".join(keys.values()) + "\n"
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    (told,) = str(caught.value).splitlines()
    assert told.startswith(f"{tmp_path}/nodevet.toml: agent.backends.commands[2].{REFUSED[line]}")


def test_the_shortest_deadline_leaves_time_for_a_command_and_to_end_it(tmp_path: Path) -> None:
    """The time of a run without a setting of its own follows the deadline; a longer one is told."""
    text = '[agent]\ndeadline_seconds = 1\n[[agent.backends.commands]]\nname = "a"\nargv = ["/bin/a"]\n'
    (command,) = load(tmp_path, text).agent.backends.commands
    assert command.run_seconds(1.0) == pytest.approx(0.7)
    with pytest.raises(ConfigurationError, match=r"timeout_seconds: found 0.81, expected at most 0.8: ending one"):
        load(tmp_path, f"{text}timeout_seconds = 0.81\n")
