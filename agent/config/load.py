"""The configuration: a TOML file, refused as a whole where anything in it is wrong, and told in one line per mistake.

Precedence: command line, file, default. Directories come from systemd's environment, else from the user: root gets
/var/lib, /run and /etc, everyone else the XDG directories (https://specifications.freedesktop.org/basedir-spec/).
"""

from __future__ import annotations

import copy
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from nodevet.checks.core.digest import sha256
from nodevet.checks.core.documents import decoded_toml
from nodevet.checks.core.errors import ConfigurationError, RegistryError, UnreadableConfigurationError
from nodevet.checks.engine.registry import Check
from nodevet.checks.system.addresses import parse_listen
from nodevet.checks.system.files import opened
from nodevet.exporters.slurm.rules import PREFIX

from .command_specs import command_problems
from .decoding import Problem, decode, field_types, suggestion
from .settings import (
    AgentSettings,
    CheckSettings,
    Configuration,
    GateSettings,
    KernelLogSettings,
    LoadSettings,
    ReportSettings,
    SlurmSettings,
    StoreSettings,
)

FILE_NAME = "nodevet.toml"

LONGEST_FILE_BYTES = 1 << 20
"""No configuration is as long: what is longer is another file, or a device that never ends."""

CHOSEN = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
)
"""What of a path that cannot be read a person must correct; a disk, a server or memory may be well again."""

SIMULATED_FOLDER = "simulated"
"""Below the standard directories: simulated nodes keep their files there, each in a folder of its own."""

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "agent": AgentSettings,
    "kernel_log": KernelLogSettings,
    "load": LoadSettings,
    "report": ReportSettings,
    "store": StoreSettings,
    "gate": GateSettings,
    "slurm": SlurmSettings,
}


SHARES = ("maximum_drained_ratio", "maximum_new_ratio")
"""The limits of ``[slurm]`` that are a share of the nodes."""


class Directories(msgspec.Struct, frozen=True):
    """Where state, runtime files and the configuration file lie."""

    state: Path
    runtime: Path
    configuration: Path


def directories(environment: Mapping[str, str], uid: int) -> Directories:
    """Return the directories that *environment* and the user *uid* give."""
    home = Path(environment.get("HOME", "/"))
    if uid == 0:
        fallback = Directories(Path("/var/lib/nodevet"), Path("/run/nodevet"), Path("/etc/nodevet"))
    else:
        state = _absolute(environment.get("XDG_STATE_HOME"), home / ".local/state") / "nodevet"
        configuration = _absolute(environment.get("XDG_CONFIG_HOME"), home / ".config") / "nodevet"
        runtime = _absolute(environment.get("XDG_RUNTIME_DIR"), state / "run", "nodevet")
        fallback = Directories(state, runtime, configuration)
    return Directories(
        state=_from_systemd(environment, "STATE_DIRECTORY", fallback.state),
        runtime=_from_systemd(environment, "RUNTIME_DIRECTORY", fallback.runtime),
        configuration=_from_systemd(environment, "CONFIGURATION_DIRECTORY", fallback.configuration),
    )


def usual_runtime_directory(environment: Mapping[str, str], uid: int) -> Path:
    """Return where a command looks for the agent of user *uid* unless told: without what systemd gives its service."""
    return directories({**environment, "RUNTIME_DIRECTORY": ""}, uid).runtime


def load_configuration(
    path: Path | None,
    checks: Sequence[Check] | Callable[[Path | None], Sequence[Check]],
    *,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Configuration:
    """Return the configuration of the file *path*, or of the default file where there is one.

    *checks* are the registered ones: they decide what ``[checks]`` may hold. A function returns them for the runtime
    directory, or for None where the configuration gives none that is valid. *overrides* come from the command line
    under their key path (``agent.listen``); those that are None do not count. Raises ConfigurationError with one line
    per mistake, each naming file, key path, what was found and what is allowed.
    """
    places = directories(os.environ if environment is None else environment, os.geteuid() if uid is None else uid)
    found = path if path is not None else places.configuration / FILE_NAME
    raw = _read(found, required=path is not None)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    problems: list[Problem] = []
    merged = _with_defaults(_with_overrides(raw or {}, given), places)
    registered = checks(_runtime_directory(merged)) if callable(checks) else checks
    configuration = _decode(merged, registered, None if raw is None else str(found), problems)
    if problems or configuration is None:
        raise ConfigurationError("\n".join(_line(problem, str(found), given) for problem in problems))
    return configuration


def digest(configuration: Configuration) -> str:
    """Return sixteen hexadecimal digits that change when any setting does; where the file lies is no setting."""
    plain = msgspec.to_builtins(msgspec.structs.replace(configuration, file=None), enc_hook=msgspec.to_builtins)
    return sha256(msgspec.json.encode(plain, order="deterministic")).hex()[:16]


def _runtime_directory(merged: Mapping[str, Any]) -> Path | None:
    agent = merged["agent"]
    text = agent.get("runtime_dir") if isinstance(agent, dict) else None
    return Path(text) if isinstance(text, str) and text.startswith("/") else None


def _absolute(text: str | None, fallback: Path, name: str = "") -> Path:
    # The specification says to ignore what is empty or relative.
    return Path(text, name) if text and text.startswith("/") else fallback


def _from_systemd(environment: Mapping[str, str], name: str, fallback: Path) -> Path:
    # Several directories of one kind are joined by colons; the first is the unit's own.
    first = environment.get(name, "").split(":")[0]
    return Path(first) if first else fallback


def _read(path: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        return decoded_toml(_content(path).decode("utf-8"))
    except FileNotFoundError as error:
        if required:
            raise ConfigurationError(f"{path}: no such file: name an existing file, or omit --config") from error
        return None
    except OSError as error:
        kind = ConfigurationError if error.errno in CHOSEN else UnreadableConfigurationError
        raise kind(f"{path}: cannot be read ({error.strerror}) by uid {os.geteuid()}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:  # also a number of thousands of digits, and tables as deep
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error


def _content(path: Path) -> bytes:
    """Return what *path* holds, without ever waiting: an agent reads it again while it runs. Raises OSError."""
    with opened(path, follow=True) as (descriptor, status):
        if stat.S_ISFIFO(status.st_mode):
            raise ConfigurationError(f"{path}: it is a pipe, and the agent reads it more than once: name a file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(LONGEST_FILE_BYTES + 1) or b""
    if len(content) > LONGEST_FILE_BYTES:
        raise ConfigurationError(f"{path}: more than {LONGEST_FILE_BYTES} bytes: name the file of nodevet's settings")
    return content


def _with_overrides(raw: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(raw))
    for path, value in overrides.items():
        *tables, key = path.split(".")
        place = merged
        for table in tables:
            inner = place.setdefault(table, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[key] = value
    return merged


def _with_defaults(raw: dict[str, Any], places: Directories) -> dict[str, Any]:
    agent = raw.setdefault("agent", {})
    if isinstance(agent, dict):
        agent.setdefault("state_dir", str(places.state))
        agent.setdefault("runtime_dir", str(places.runtime))
        agent["node_name"] = agent.get("node_name") or socket.gethostname().split(".")[0]
        state = agent["state_dir"]
        report = raw.setdefault("report", {})
        if isinstance(report, dict) and isinstance(state, str):
            report["directory"] = report.get("directory") or str(Path(state, "reports"))
    return raw


def _decode(
    raw: Mapping[str, Any], checks: Sequence[Check], file: str | None, problems: list[Problem]
) -> Configuration | None:
    names = (*SECTIONS, "checks")
    problems.extend(Problem(key, f"unknown section, {suggestion(key, names)}") for key in raw if key not in names)
    sections: dict[str, Any] = {
        name: decode(raw.get(name, {}), struct, name, problems) for name, struct in SECTIONS.items()
    }
    settings = _decode_checks(raw.get("checks", {}), checks, problems)
    if sections["agent"] is not None:
        problems.extend(_agent_problems(sections["agent"]))
    if sections["slurm"] is not None:
        problems.extend(_slurm_problems(sections["slurm"]))
        problems.extend(_share_problems(raw.get("slurm", {})))
    if problems:
        return None
    return Configuration(**sections, checks=settings, file=file)


def _decode_checks(raw: object, checks: Sequence[Check], problems: list[Problem]) -> dict[str, CheckSettings]:
    if not isinstance(raw, Mapping):
        problems.append(Problem("checks", "expected tables, such as [checks.thermal]"))
        return {}
    names = [check.name for check in checks]
    if not any(check.broken for check in checks):
        problems.extend(
            Problem(f"checks.{key}", f"unknown check, {suggestion(key, names)}") for key in raw if key not in names
        )
    found = {}
    for check in checks:
        settings = _decode_check(raw.get(check.name, {}), check, problems)
        if settings is not None:
            found[check.name] = settings
    return found


def _decode_check(raw: object, check: Check, problems: list[Problem]) -> CheckSettings | None:
    """Decode one flat table: ``enabled`` and ``mode``, and beside them the fields of the check's own policy."""
    own = [field for field in msgspec.structs.fields(CheckSettings) if field.name != "policy"]
    policy = msgspec.structs.fields(check.policy)
    clash = {field.name for field in own} & {field.name for field in policy}
    if clash:
        raise RegistryError(f"check {check.name}: its policy must not name a field {', '.join(sorted(clash))}")
    hints = field_types(CheckSettings) | field_types(check.policy)
    columns = [(field.name, hints[field.name], _default(field, check)) for field in (*own, *policy)]
    try:
        table = msgspec.defstruct("CheckTable", columns, frozen=True, kw_only=True)
        msgspec.inspect.type_info(table)
    except TypeError as error:
        raise RegistryError(f"check {check.name}: its policy cannot be read from a file: {error}") from error
    path = f"checks.{check.name}"
    if check.broken and isinstance(raw, Mapping):
        raw = {key: value for key, value in raw.items() if key in hints}
    flat = decode(raw, table, path, problems)
    if flat is None:
        return None
    values = msgspec.structs.asdict(flat)
    needed, window = values.get("needed"), values.get("window")
    if needed is not None and window is not None and needed > window:
        problems.append(Problem(f"{path}.needed", f"found {needed}, expected no more than window = {window}"))
        return None
    switches = {field.name: values.pop(field.name) for field in own}
    try:
        return CheckSettings(policy=check.policy(**values), **switches)
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None


def _default(field: msgspec.structs.FieldInfo, check: Check) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    if field.default is msgspec.NODEFAULT:
        raise RegistryError(f"check {check.name}: field {field.name} of its policy has no default")
    return field.default


def _agent_problems(agent: AgentSettings) -> list[Problem]:
    problems = []
    try:
        parse_listen(agent.listen)
    except ConfigurationError as error:
        problems.append(Problem("agent.listen", str(error)))
    for name in ("state_dir", "runtime_dir", "root"):
        value = getattr(agent, name)
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            problems.append(Problem(f"agent.{name}", f"found {value!a}, expected a path in UTF-8"))
        elif not Path(value).is_absolute():
            problems.append(Problem(f"agent.{name}", f'found "{value}", expected an absolute path'))
    if not agent.node_name.isprintable() or any(letter.isspace() for letter in agent.node_name):
        problems.append(Problem("agent.node_name", f"found {agent.node_name!r}, expected a name without blanks"))
    enabled = agent.backends.enabled
    if len(set(enabled)) < len(enabled):
        problems.append(Problem("agent.backends.enabled", "names a backend twice"))
    return [*problems, *command_problems(agent)]


def _slurm_problems(slurm: SlurmSettings) -> list[Problem]:
    problems = []
    if not re.fullmatch(PREFIX, slurm.reason_prefix):
        allowed = "a word of at most 32 letters, digits, _ and -"
        problems.append(Problem("slurm.reason_prefix", f"found {slurm.reason_prefix!r}, expected {allowed}"))
    if slurm.node_name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", slurm.node_name):
        problems.append(Problem("slurm.node_name", f"found {slurm.node_name!r}, expected the name of one node"))
    return problems


def _share_problems(raw: Mapping[str, object]) -> list[Problem]:
    """Return which limits of the table *raw* may be meant in per cent: a 1 without a point would close every node."""
    expected = "found 1, expected a share: 0.01 is 1 in 100, 1.0 is every node"
    return [Problem(f"slurm.{name}", expected) for name in SHARES if type(raw.get(name)) is int and raw[name] == 1]


def _line(problem: Problem, file: str, overrides: Mapping[str, object]) -> str:
    source = "command line" if problem.path in overrides else file
    return f"{source}: {problem.path}: {problem.text}"
