"""The configuration: what is accepted, and how every mistake is told in one line with its place."""

from __future__ import annotations

import os
import re
import threading
import time
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from nodevet.agent.config.load import (
    Directories,
    digest,
    directories,
    load_configuration,
    usual_runtime_directory,
)
from nodevet.agent.config.settings import Configuration
from nodevet.agent.config.text import render
from nodevet.agent.daemon.reload import Reread
from nodevet.checks.core.errors import ConfigurationError, ModelError, RegistryError
from nodevet.checks.engine.registry import Check, discover

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "config"
ENVIRONMENT = {"HOME": "/home/ada"}


class ThermalPolicy(msgspec.Struct, frozen=True):
    """A policy with ranges, a missing value, a list, and two fields that must agree."""

    warn_margin_celsius: Annotated[float, msgspec.Meta(ge=0, le=50, description="degrees left")] = 5.0
    fail_margin_celsius: Annotated[float, msgspec.Meta(ge=0, le=50)] = 0.0
    limit_celsius: Annotated[float | None, msgspec.Meta(ge=20, description="absolute")] = None
    sensors: tuple[str, ...] = ("core", "memory")

    def __post_init__(self) -> None:
        """Refuse a failure before its warning."""
        if self.fail_margin_celsius > self.warn_margin_celsius:
            raise ModelError("fail_margin_celsius must not exceed warn_margin_celsius")


class LinksPolicy(msgspec.Struct, frozen=True):
    """A policy of one field."""

    errors_per_minute: int = 10
    ratio: float = 1.0


def spec(name: str, policy: type[msgspec.Struct]) -> Check:
    """Return a check *name* that judges nothing."""
    return Check(name=name, summary=name, judge=lambda _view, _policy: (), policy=policy)


CHECKS = (spec("links", LinksPolicy), spec("thermal", ThermalPolicy))


def load(path: Path | None, **overrides: object) -> Configuration:
    """Load *path* as user ada, with *overrides* whose double underscores stand for dots."""
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_configuration(path, CHECKS, overrides=given, environment=ENVIRONMENT, uid=1000)


def refusal(path: Path | None, **overrides: object) -> list[str]:
    """Return the lines with which *path* is refused."""
    with pytest.raises(ConfigurationError) as caught:
        load(path, **overrides)
    return str(caught.value).splitlines()


def test_every_setting_of_a_file_is_taken() -> None:
    """Values of every section arrive typed; what the file leaves out keeps its default."""
    found = load(FIXTURES / "good.toml")
    agent = found.agent

    assert (agent.listen, agent.state_dir, agent.node_name) == ("[::1]:10999", "/srv/nodevet", "gpu042")
    assert (agent.interval_seconds, agent.slow_interval_seconds) == (5.0, 60.0)
    assert agent.backends.enabled == ("host",)
    assert (found.kernel_log.path, found.load.probe) == ("/var/log/kern.log", "off")
    assert (found.report.keep, found.report.directory) == (3, "/srv/nodevet/reports")
    assert found.checks["thermal"].policy == ThermalPolicy(warn_margin_celsius=3.5)
    assert found.checks["links"].enabled is False
    assert found.file == str(FIXTURES / "good.toml")


ADDRESS = "expected HOST:PORT, [ADDRESS]:PORT or :PORT with a port from 0 to 65535"

REFUSALS = {
    "unknown_key": "checks.thermal.warn_margin_celcius: unknown key, did you mean warn_margin_celsius?",
    "unknown_section": "agnet: unknown section, did you mean agent?",
    "unknown_check": "checks.termal: unknown check, did you mean thermal?",
    "unknown_key_far": "load.zzz: unknown key, allowed: budget_seconds, interval_seconds, probe",
    "wrong_type_text": 'agent.interval_seconds: found "10", expected a number from 1 to 3600',
    "wrong_type_flag": "checks.thermal.enabled: found 1, expected true or false",
    "wrong_type_number_is_flag": "agent.interval_seconds: found true, expected a number from 1 to 3600",
    "wrong_type_whole_number": "report.keep: found 2.5, expected a whole number from 1 to 10000",
    "too_low": "agent.interval_seconds: found 0.2, expected a number from 1 to 3600",
    "too_high": "load.budget_seconds: found 3601, expected a number from 1 to 600",
    "policy_out_of_range": "checks.thermal.warn_margin_celsius: found -1, expected a number from 0 to 50",
    "policy_optional_out_of_range": "checks.thermal.limit_celsius: found 3, expected a number of at least 20",
    "not_a_number": "agent.deadline_seconds: found nan, expected a number from 1 to 600",
    "deadline_too_short": "agent.deadline_seconds: found 0.2, expected a number from 1 to 600",
    "not_a_number_without_range": "checks.links.ratio: found nan, expected a number",
    "infinite": "load.interval_seconds: found inf, expected a number from 60 to 2592000",
    "wrong_choice": 'load.probe: found "of", expected one of auto, off, on, did you mean off?',
    "wrong_backend": (
        'agent.backends.enabled[1]: found "nvida", expected one of amd, host, nvidia, did you mean nvidia?'
    ),
    "no_backend": (
        "agent.backends.enabled: found an empty list, expected a list with at least 1 entry, each one of amd, host, "
        "nvidia"
    ),
    "backend_twice": "agent.backends.enabled: names a backend twice",
    "wrong_listen": f'agent.listen: found "localhost", {ADDRESS}',
    "wrong_port": f'agent.listen: found "127.0.0.1:70000", {ADDRESS}',
    "relative_directory": 'agent.state_dir: found "state", expected an absolute path',
    "wrong_node_name": "agent.node_name: found 'gpu 42', expected a name without blanks",
    "section_is_value": "agent: found 5, expected a table",
    "check_is_value": "checks.thermal: found false, expected a table",
    "wrong_mode": 'gate.mode: found "closed", expected one of observe, gate, drain',
    "wrong_check_mode": 'checks.thermal.mode: found "observ", expected one of observe, gate, drain, did you mean',
    "wrong_prefix": "slurm.reason_prefix: found 'node vet:', expected a word of at most 32 letters, digits, _ and -",
    "several_nodes": "slurm.node_name: found 'n[1-3]', expected the name of one node",
    "limit_in_per_cent": "slurm.maximum_new_ratio: found 1, expected a share: 0.01 is 1 in 100, 1.0 is every node",
    "slow_scontrol": "slurm.timeout_seconds: found 30, expected a number from 0.1 to 5",
    "policy_contradiction": "checks.thermal: fail_margin_celsius must not exceed warn_margin_celsius",
    "broken_syntax": "not valid TOML: ",
    "key_twice": "not valid TOML: Cannot overwrite a value (at line 3, column 20)",
    "not_utf8": "byte 24 is not UTF-8: save the file as UTF-8",
}
"""Per file of one mistake: what its one line says after the name of the file."""


@pytest.mark.parametrize("name", REFUSALS)
def test_each_mistake_is_one_line_with_its_place(name: str) -> None:
    """The line names file, key path, what was found, and what is allowed or was probably meant."""
    path = FIXTURES / f"{name}.toml"
    lines = refusal(path)

    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{path}: {REFUSALS[name]}"), lines[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("9" * 9000, "not valid TOML"),
        ("[" * 9000, "not valid TOML"),
        (f"0x{'f' * 9000}", "agent.interval_seconds: found a number of 36000 bits, expected a number from 1 to 3600"),
    ],
)
def test_what_no_interpreter_prints_is_a_mistake_too(tmp_path: Path, value: str, words: str) -> None:
    """A reload must not end the agent, whatever stands in its file."""
    path = tmp_path / "nodevet.toml"
    path.write_text(f"[agent]\ninterval_seconds = {value}\n")
    assert words in refusal(path)[0]


def test_every_bad_file_has_its_row() -> None:
    """No fixture lies about unused."""
    assert {path.stem for path in FIXTURES.glob("*.toml")} == {*REFUSALS, "good", "two_mistakes"}


def test_all_mistakes_are_told_at_once() -> None:
    """Nobody has to start the agent once per typo."""
    lines = refusal(FIXTURES / "two_mistakes.toml")

    assert [line.split(": ")[1] for line in lines] == ["agent.lisen", "agent.interval_seconds"]


def test_command_line_outranks_the_file_and_is_named_in_mistakes() -> None:
    """An override that is None does not count; a wrong one is blamed on the command line."""
    found = load(FIXTURES / "good.toml", agent__interval_seconds=2.0, agent__listen=None, agent__state_dir="/x")
    assert (found.agent.interval_seconds, found.agent.listen) == (2.0, "[::1]:10999")
    assert (found.agent.state_dir, found.report.directory) == ("/x", "/x/reports")

    lines = refusal(FIXTURES / "good.toml", agent__interval_seconds=0.5)
    assert lines == ["command line: agent.interval_seconds: found 0.5, expected a number from 1 to 3600"]


def test_absent_and_unreadable_files(tmp_path: Path) -> None:
    """A file that was asked for must exist; the default file need not."""
    assert load(None).file is None
    assert "no such file" in refusal(tmp_path / "absent.toml")[0]
    assert "cannot be read" in refusal(tmp_path)[0]


def test_default_file_is_found_where_systemd_says(tmp_path: Path) -> None:
    """CONFIGURATION_DIRECTORY names the directory of nodevet.toml."""
    (tmp_path / "nodevet.toml").write_text('[agent]\nnode_name = "here"\n')
    found = load_configuration(None, CHECKS, environment={"CONFIGURATION_DIRECTORY": str(tmp_path)}, uid=0)

    assert (found.agent.node_name, found.file) == ("here", str(tmp_path / "nodevet.toml"))


SYSTEMD = {
    "STATE_DIRECTORY": "/var/lib/nv:/var/lib/other",
    "RUNTIME_DIRECTORY": "/run/nv",
    "CONFIGURATION_DIRECTORY": "/etc/nv",
}
XDG = {"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CONFIG_HOME": "/c"}


@pytest.mark.parametrize(
    ("environment", "uid", "state", "runtime", "configuration"),
    [
        ({}, 0, "/var/lib/nodevet", "/run/nodevet", "/etc/nodevet"),
        (SYSTEMD, 0, "/var/lib/nv", "/run/nv", "/etc/nv"),
        (SYSTEMD | ENVIRONMENT | XDG, 1000, "/var/lib/nv", "/run/nv", "/etc/nv"),
        (XDG | ENVIRONMENT, 1000, "/s/nodevet", "/r/nodevet", "/c/nodevet"),
        (XDG | ENVIRONMENT, 0, "/var/lib/nodevet", "/run/nodevet", "/etc/nodevet"),
        (
            ENVIRONMENT,
            1000,
            "/home/ada/.local/state/nodevet",
            "/home/ada/.local/state/nodevet/run",
            "/home/ada/.config/nodevet",
        ),
        (
            ENVIRONMENT | {"XDG_STATE_HOME": "relative", "XDG_RUNTIME_DIR": ""},
            1000,
            "/home/ada/.local/state/nodevet",
            "/home/ada/.local/state/nodevet/run",
            "/home/ada/.config/nodevet",
        ),
    ],
)
def test_directories_come_from_systemd_root_or_user(
    environment: dict[str, str], uid: int, state: str, runtime: str, configuration: str
) -> None:
    """systemd's own come first; root has the system's, everyone else their own."""
    assert directories(environment, uid) == Directories(Path(state), Path(runtime), Path(configuration))


def test_a_command_does_not_look_where_systemd_told_the_service_alone() -> None:
    """A shell has no RUNTIME_DIRECTORY of the unit."""
    assert usual_runtime_directory({"RUNTIME_DIRECTORY": "/run/other"}, 0) == Path("/run/nodevet")


@pytest.mark.parametrize("name", ["good.toml", None])
def test_what_is_shown_reads_back_as_itself(name: str | None, tmp_path: Path) -> None:
    """`config show` prints TOML that gives the same configuration, and names defaults that were changed."""
    found = load(FIXTURES / name if name else None)
    text = render(found, CHECKS)
    path = tmp_path / "shown.toml"
    path.write_text(text)

    assert load(path) == msgspec.structs.replace(found, file=str(path))
    assert digest(load(path)) == digest(found)
    assert ("default 10.0" in text) is (name is not None)
    assert re.search(r"^warn_margin_celsius = .*# degrees left; a number from 0 to 50", text, re.MULTILINE)
    assert re.search(r"^# limit_celsius = .*# absolute; a number of at least 20", text, re.MULTILINE)


def test_what_is_shown_escapes_text(tmp_path: Path) -> None:
    """Quotes, backslashes and control characters survive."""
    odd = 'a"b\\c\td\x7f\x01é'
    found = load(None, kernel_log__path=odd)

    assert tomllib.loads(render(found))["kernel_log"]["path"] == odd


def test_digest_changes_with_every_setting_and_nothing_else(tmp_path: Path) -> None:
    """Another file with the same text has the same digest; each changed value has another."""
    copy = tmp_path / "copy.toml"
    copy.write_text((FIXTURES / "good.toml").read_text())
    base = digest(load(FIXTURES / "good.toml"))
    assert digest(load(copy)) == base

    changed = [
        digest(load(copy, **{path: value}))
        for path, value in (
            ("agent__interval_seconds", 6.0),
            ("checks__thermal__warn_margin_celsius", 4.0),
            ("checks__links__enabled", True),
        )
    ]
    copy.write_text(copy.read_text().replace("rollup_days = 7", "rollup_days = 8"))
    changed.append(digest(load(copy)))
    assert len({base, *changed}) == 5


class NoDefaultPolicy(msgspec.Struct, frozen=True):
    """A policy that a node without a configuration file could not have."""

    limit: float


class ClashingPolicy(msgspec.Struct, frozen=True):
    """A policy that takes a name of the configuration's own."""

    enabled: str = "x"


class UnreadablePolicy(msgspec.Struct, frozen=True):
    """A policy whose range is on a type that has none."""

    links: Annotated[str, msgspec.Meta(ge=0)] = ""


@pytest.mark.parametrize("policy", [NoDefaultPolicy, ClashingPolicy, UnreadablePolicy])
def test_policy_that_cannot_be_configured_is_our_own_mistake(policy: type[msgspec.Struct]) -> None:
    """It is told as one, not blamed on the file."""
    with pytest.raises(RegistryError, match="check odd"):
        load_configuration(None, (spec("odd", policy),), environment=ENVIRONMENT, uid=1000)


def test_every_shipped_check_can_be_configured_and_shown(tmp_path: Path) -> None:
    """Defaults of all checks of ours load, show and read back."""
    checks = discover()
    found = load_configuration(None, checks, environment=ENVIRONMENT, uid=1000)
    path = tmp_path / "shown.toml"
    path.write_text(render(found, checks))

    again = load_configuration(path, checks, environment=ENVIRONMENT, uid=1000)
    assert digest(again) == digest(found)


def test_what_never_ends_or_never_answers_is_refused_at_once(tmp_path: Path) -> None:
    """The agent reads its file again at SIGHUP: a pipe would hold its loop for ever, a device fill its memory."""
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_text("# \n" * 400_000)
    assert "it is a pipe" in refusal(pipe)[0]
    assert "more than" in refusal(long)[0]
    assert "more than" in refusal(Path("/dev/zero"))[0]
    assert load(Path("/dev/null")).agent == load(None).agent


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Neither does one that is accepted, nor a folder."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for path in (pipe, tmp_path, Path("/dev/zero")):
        refusal(path)
    load(FIXTURES / "good.toml")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_file_that_gives_no_answer_is_refused_in_time() -> None:
    """A configuration on a server that has gone, read again at SIGHUP: before, the main loop waited for it.

    Nobody asks a second time while the first waits; once it answers it is read as ever.
    """
    answers, asked = threading.Event(), []

    def wait() -> Configuration:
        asked.append(1)
        assert answers.wait(1.5)
        return load(None)

    reread = Reread(wait, seconds=0.05)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(ConfigurationError, match=r"did not answer within 0\.05 s"):
            reread()
    assert (len(asked), time.monotonic() - began < 1.0) == (1, True)
    answers.set()
    assert digest(Reread(wait)()) == digest(load(None))


def test_what_a_file_is_refused_for_passes_through_a_reread(tmp_path: Path) -> None:
    """And a bug stays one."""
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Reread(lambda: load(tmp_path))()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Reread(lambda: 1 // 0)()  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("name", ["maximum_drained_ratio", "maximum_new_ratio"])
@pytest.mark.parametrize("value", ["0", "0.0", "0.01", "1.0"])
def test_a_limit_that_can_only_be_a_share_is_taken(tmp_path: Path, name: str, value: str) -> None:
    """None and every node are shares too, where they are written so."""
    file = tmp_path / "nodevet.toml"
    file.write_text(f"[slurm]\n{name} = {value}\n")
    assert getattr(load(file).slurm, name) == float(value)
    file.write_text(f"[slurm]\n{name} = 1\n")
    (told,) = refusal(file)
    assert "0.01 is 1 in 100" in told
