"""Reads the facts for `nodevet slurm check`: scripts, settings, the state file, and SLURM's answers.

The installed scripts run only if nobody except root and the agent's user can have written them: a test run with copies
in a temporary folder, and their own parsing of gate.conf and gres.conf, so that no second parser can differ.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nodevet.agent.config.settings import Configuration
from nodevet.agent.store.database import NETWORK_FILE_SYSTEMS, file_system_of
from nodevet.checks.system.process import Done, RunError, Runner
from nodevet.exporters.slurm.permit import forgotten_words
from nodevet.exporters.slurm.rules import is_machine, machine_of, parse_node
from nodevet.exporters.slurm.scontrol import SEARCHED, Scontrol, SlurmError
from nodevet.exporters.statefile.reader import FORMAT, NEVER, Absent, StateFile, boot_id, read_state, uptime_seconds

from .checkup import SCRIPTS, UNSET
from .facts import Entry, Facts, Hook
from .loaded import Running

PERIODIC = "HealthCheckProgram"
HOOKS = {"Prolog": "prolog.sh", "Epilog": "epilog.sh", PERIODIC: "healthcheck.sh"}
BESIDE_CONF, SEVERAL = (23, 11), (24, 5)
"""First releases of SLURM (year, month) that accept a script's name without a folder, and several lines of one hook."""

SHELL = "/bin/sh"
LIMIT_SECONDS = 10.0
MOST_BYTES = 1 << 20
MOST_GPUS = 64
MOST_LINKS = 40
"""Maximum number of links in one path, as in the kernel."""

SETTINGS = """
. "$1/gate.sh"
read_settings "$1/gate.conf"
[ "$slip" ] || read_below_end "$1/gate.conf"
for name in runtime_dir on_stale on_driver_refusal mode gpus probe_wait_seconds drain_wait_seconds slip; do
    eval "printf '%s=%s\\n' $name \\"\\$$name\\""
done
"""

MAPPING = """
. "$1/gate.sh"
. "$1/gres.sh"
read_settings "$1/gate.conf"
gpu=0
while [ "$gpu" -lt "$4" ]; do
    wanted_gpus "$gpu" "$2" "$3"
    printf '%s|%s\\n' "$order" "$wanted"
    gpu=$((gpu + 1))
done
"""

STATE = """\
{verdict} {expires} 1 a test run
{form} {boot} real running idle {hard} none {fresh} test
node - - {verdict} {hard} none node a test run
end 3
"""

CASES = (
    ("ok", "soft", 0, "open"),
    ("failed", "hard", 1, "closed"),
    ("failed", "unpermitted", 0, "unpermitted"),
    ("failed", "word-of-another-release", 0, "no_verdict_open"),
    ("unknown", "soft", 0, "no_verdict_open"),
)
"""Cases of the rehearsal: verdict, reach, and the exit code and decision that a copy of the scripts must give."""


def survey(
    settings: Configuration,
    folder: Path,
    environment: Mapping[str, str],
    *,
    only_node: bool = False,
    running: Running | str | None = None,
) -> Facts:
    """Return the facts about the scripts in *folder*, the agent of *settings*, and, unless *only_node*, SLURM.

    *running* is the configuration that the agent has loaded. The paths of SLURM's files come from the settings, else
    from *environment* as slurmd passes it on, else from SLURM itself, else they are the usual ones.
    """
    folder = folder.absolute()
    node = settings.slurm.node_name or settings.agent.node_name
    scripts = tuple(_entry(folder / name) for name in SCRIPTS)
    gate_conf = folder / "gate.conf"
    parents = _parents(folder, gate_conf)
    state_path = Path(settings.agent.runtime_dir) / "state"
    state_uid = _entry(state_path).uid
    # The state's age counts from now: SLURM may answer so slowly that a fresh state expires meanwhile.
    now = uptime_seconds()
    state = read_state(str(state_path), boot_id=boot_id(), uptime_seconds=now, owner_uid=_number(state_uid))
    doubt = _doubt((*scripts, *parents), {0, _number(state_uid)})
    # Like the agent, without the environment of the person who runs the check.
    asked = None if only_node else Scontrol(settings.slurm.scontrol, configuration=settings.slurm.conf)
    config = "not queried" if asked is None else _config(asked)
    if asked is not None and isinstance(config, str) and environment.get("SLURM_CONF") and not settings.slurm.conf:
        config += f'; SLURM_CONF is set here and not for the agent: set [slurm] conf = "{environment["SLURM_CONF"]}"'
    conf = _slurm_conf(settings, environment, config)
    shown = None if asked is None or isinstance(config, str) else _shown(asked, node)
    gate = doubt or _gate(folder)
    gres_path, written = conf.with_name("gres.conf"), _written(conf)
    return Facts(
        node=node,
        folder=str(folder),
        uid=os.geteuid(),
        scripts=scripts,
        parents=parents,
        gate_conf=_entry(gate_conf),
        gate=gate,
        rehearsal=doubt or _rehearsal(folder),
        settings=settings,
        state_path=str(state_path),
        state=state,
        state_uid=state_uid,
        uptime_seconds=now,
        claims=_entry(state_path.with_name("claims"), folder=True),
        gres_path=str(gres_path),
        gres=doubt or _gres(folder, gres_path, node, state),
        remote=_remote(folder, gres_path, gate),
        config=config,
        written=written,
        machine=_machine(asked, node) if asked is not None and isinstance(shown, str) else "",
        forgotten=forgotten_words(parse_node(shown, node)) if isinstance(shown, str) else "",
        unknown_node="" if not isinstance(shown, SlurmError) else str(shown),
        gres_of_node=_gres_of_node(shown) if isinstance(shown, str) else None,
        hooks={} if isinstance(config, str) else hooks_of(config, folder, conf),
        awaiting={} if isinstance(config, str) else awaiting_of(config, written, folder, conf),
        running=running,
        admin_level=None if isinstance(config, str) or settings.slurm.writer != "drain" else _admin_level(state_uid),
    )


def _number(uid: int | None) -> int:
    return 0 if uid is None else uid


def _slurm_conf(settings: Configuration, environment: Mapping[str, str], config: Mapping[str, str] | str) -> Path:
    """Return the slurm.conf of this node: a site's own build of SLURM has it elsewhere than the packages.

    *config* names the file of slurmctld, which may not exist on this node. /run has one only if slurmd fetches it.
    """
    named = config.get("SLURM_CONF", "") if isinstance(config, Mapping) else ""
    usual = ("/run/slurm/conf/slurm.conf", named, "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
    given = settings.slurm.conf or environment.get("SLURM_CONF", "")
    found = (Path(path) for path in usual if path and Path(path).is_file())
    return Path(given) if given else next(found, Path("/etc/slurm/slurm.conf"))


def _entry(path: Path, *, folder: bool = False) -> Entry:
    """Return owner, mode and faults of *path*, a script or, with *folder*, a folder. Links are followed."""
    try:
        status = path.stat()
    except OSError as error:
        return Entry(str(path), trouble=error.strerror or str(error))
    fits = stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)
    kind = "not a directory" if folder else "not a regular file"
    unstartable = "" if folder or not fits else _unstartable(path)
    return Entry(str(path), status.st_uid, stat.S_IMODE(status.st_mode), "" if fits else kind, unstartable)


def _parents(folder: Path, gate_conf: Path) -> tuple[Entry, ...]:
    """Return every folder on the path to the scripts in *folder* and to *gate_conf*, *folder* first.

    It includes the folders of links on the path: write access there can redirect the link.
    """
    ways = (_way(path) for path in (*(folder / name for name in SCRIPTS), gate_conf))
    found = dict.fromkeys([folder, *(parent for way in ways for parent in way)])
    return tuple(_entry(parent, folder=True) for parent in found)


def _way(path: Path) -> list[Path]:
    """Return the folders on the way when *path* is opened, link by link; a broken link ends the list."""
    found: list[Path] = []
    for _ in range(MOST_LINKS):
        link = next((part for part in reversed((path, *path.parents)) if _is_link(part)), None)
        found += path.parents if link is None else link.parents
        if link is None:
            break
        try:
            target = link.readlink()
        except OSError:  # removed meanwhile, or readable by root only
            break
        # Everything above the first link is a folder, so that .. in its text needs no link to be resolved.
        path = Path(os.path.normpath(link.parent / target / path.relative_to(link)))
    return found


def _is_link(path: Path) -> bool:
    """Return whether *path* is a link; False if its folder is unreadable, which its entry reports."""
    try:
        return path.is_symlink()
    except OSError:
        return False


def _remote(folder: Path, gres_path: Path, gate: Mapping[str, str] | str) -> tuple[str, ...]:
    """Return the folders that a prolog reads over the network, each with its file system type; links are resolved."""
    known = gate if isinstance(gate, Mapping) else {}
    files = (folder / name for name in (*SCRIPTS, "gate.conf"))
    reads = [folder, *(Path(os.path.realpath(path)).parent for path in files if _is_link(path))]
    reads += [Path(known["runtime_dir"])] if "runtime_dir" in known else []
    reads += [] if known and known.get("gpus") != "auto" else [gres_path]
    kinds = [(path, file_system_of(path)) for path in dict.fromkeys(reads)]
    return tuple(f"{path} ({kind})" for path, kind in kinds if kind in NETWORK_FILE_SYSTEMS)


def _unstartable(path: Path) -> str:
    """Return why the kernel cannot execute the program *path*; empty if it can. A shell accepts more than SLURM.

    The result is empty too if the start of the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            first = file.read(256)
    except OSError:
        return ""
    if first.startswith(b"\x7fELF"):
        return ""
    if not first.startswith(b"#!"):
        return "it does not begin with #!"
    line = first[2:].split(b"\n", 1)[0].strip(b" \t")
    interpreter = line.replace(b"\t", b" ").split(b" ", 1)[0]
    if interpreter.endswith(b"\r"):
        return "its first line ends with a carriage return, as in a Windows file"
    if not interpreter or not os.access(interpreter, os.X_OK):
        return f"there is no program {os.fsdecode(interpreter)}"
    if os.geteuid() == 0 and not os.access(path, os.R_OK | os.X_OK) and path.stat().st_mode & 0o111:
        return "its file system is mounted noexec"
    return ""


def _doubt(entries: tuple[Entry, ...], trusted: set[int]) -> str:
    """Return why the scripts are not run here; empty if they are. Files that others may write are never run as root."""
    for entry in entries:
        if entry.uid is None or entry.trouble:
            return f"the scripts were not run: {entry.path}: {entry.trouble or 'missing'}"
        if entry.uid not in trusted or (entry.mode & 0o022 and not entry.mode & stat.S_ISVTX):
            return f"the scripts were not run: {entry.path} is writable by others"
    return ""


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _shell(*words: str, environment: Mapping[str, str] | None = None) -> Done | str:
    """Run the shell with *words* as slurmd does, without PATH and HOME; return the error as text if it fails to run."""
    try:
        return Runner().run((SHELL, *words), LIMIT_SECONDS, environment or {})
    except (OSError, RunError) as error:
        return f"{SHELL}: {error}"


def _lines(output: bytes) -> list[str]:
    return output.decode("utf-8", "replace").splitlines()


def _gate(folder: Path) -> Mapping[str, str] | str:
    """Return the settings as the scripts parse them, or the error as text."""
    done = _shell("-c", SETTINGS, "settings", str(folder))
    if isinstance(done, str):
        return done
    values = dict(line.split("=", 1) for line in _lines(done.output) if "=" in line)
    if done.exit.status != 0 or "mode" not in values:
        return f"{folder}/gate.sh cannot be read by {SHELL}: {done.last_line or 'it sets nothing'}"
    return {**values, "found": "yes" if (folder / "gate.conf").is_file() else "no"}


def _rehearsal(folder: Path) -> tuple[str, ...] | str:
    """Return the wrong decisions of copies of the scripts, run on invented states in a temporary folder.

    Or why they cannot run: /tmp may be full or read-only.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="nodevet-test-") as name:
            home = Path(name)
            (home / "run" / "claims").mkdir(parents=True)
            for script in SCRIPTS:
                # A script that ignores its settings must not write to the runtime directory of this node's agent.
                text = (folder / script).read_bytes().replace(b"/run/nodevet", os.fsencode(home / "unset"))
                (home / script).write_bytes(text)
            waits = "probe_wait_seconds=0\ndrain_wait_seconds=0\n"
            (home / "gate.conf").write_text(f"runtime_dir={home}/run\nmode=gate\n{waits}", encoding="utf-8")
            wrong = [difference for case in CASES if (difference := _rehearsed(home, *case))]
            ended = _shell(str(home / "epilog.sh"), environment={"SLURM_JOB_ID": "1"})
            if isinstance(ended, str) or ended.exit.status or any((home / "run" / "claims").iterdir()):
                wrong.append("epilog.sh does not remove the claim of a job")
            return tuple(wrong)
    except OSError as error:
        return f"the scripts were not run: {error}"


def _rehearsed(home: Path, verdict: str, hard: str, code: int, decision: str) -> str:
    """Return how the copy in *home* deviates from the required decision; empty if it does not."""
    fresh = int(uptime_seconds()) + 60
    expires = NEVER if verdict == "failed" else fresh
    state = STATE.format(verdict=verdict, expires=expires, form=FORMAT, boot=boot_id(), hard=hard, fresh=fresh)
    (home / "run" / "state").write_text(state, encoding="utf-8")
    (home / "run" / "gate.log").unlink(missing_ok=True)
    done = _shell(str(home / "prolog.sh"), environment={"SLURM_JOB_ID": "1", "SLURM_CONF": str(home / "slurm.conf")})
    if isinstance(done, str):
        return done
    logged = (_text(home / "run" / "gate.log") or "nothing").split(" ", 1)[0]
    if (done.exit.status, logged) == (code, decision):
        return ""
    return f"{verdict} {hard}: prolog.sh exits {done.exit.status} with {logged}, not {code} with {decision}"


def _gres(folder: Path, gres: Path, node: str, state: StateFile | Absent) -> tuple[tuple[str, str], ...] | str:
    """Return, for each GPU of this node in SLURM, the kind of its number (PCI or minor) and the number or ``all``."""
    if isinstance(state, Absent):
        return "no state file to compare"
    count = min(sum(device.kind == "accelerator" for device in state.devices), MOST_GPUS)
    done = _shell("-c", MAPPING, "mapping", str(folder), str(gres), node, str(count))
    if isinstance(done, str):
        return done
    lines = [line.split("|", 1) for line in _lines(done.output)]
    found = [(order, wanted.strip()) for order, wanted in lines if wanted.strip()]
    if done.exit.status != 0 or len(lines) != count:
        return f"{folder}/gres.sh cannot be read by {SHELL}: {done.last_line or 'it prints too little'}"
    # An index past the end of the list is `all`: SLURM has fewer GPUs than the node, and never assigns such an index.
    while len(found) > 1 and found[-1][1] == "all" and found[0][1] != "all":
        found.pop()
    return tuple(found)


def _config(asked: Scontrol) -> Mapping[str, str] | str:
    """Return the configuration that slurmctld has loaded, or the error as text."""
    try:
        text = asked.show("config")
    except SlurmError as error:
        return str(error)
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _written(conf: Path) -> Mapping[str, str]:
    """Return the settings in slurm.conf itself, by name in lower case; includes are not followed.

    Of several settings on one line, only the first counts. An ``include`` is listed under this name.
    """
    lines = (line.split("#", 1)[0] for line in (_text(conf) or "").splitlines())
    found = (re.match(r"""\s*(\w+)\s*=\s*(?:"([^"]*)"|(\S*))|\s*(?i:(include))\s""", line) for line in lines)
    return {(line[1] or line[4]).lower(): line[2] or line[3] or "" for line in found if line}


def _shown(asked: Scontrol, node: str) -> str | SlurmError:
    """Return *node* as slurmctld shows it, or the error: the agent uses the same name."""
    try:
        asked.read(node)
        return asked.show("node", node)
    except SlurmError as error:
        return error


def _machine(asked: Scontrol, node: str) -> str:
    """Return SLURM's name of this machine if *node* is another one; empty if it is not, or if that is unknown."""
    host = socket.gethostname()
    try:
        return "" if is_machine(asked.read(node), host) else machine_of(asked.read_all(), host)
    except SlurmError:
        return ""


def _gres_of_node(text: str) -> str | None:
    found = re.search(r"^\s+Gres=(.*)$", text, re.MULTILINE)
    return None if found is None or found[1] == "(null)" else found[1]


def hooks_of(config: Mapping[str, str], folder: Path, conf: Path) -> Mapping[str, Hook]:
    """Return the scripts that SLURM runs by *config*: their files on this node, and the scripts of *folder* they call.

    SLURM takes the whole value as one name: as a pattern of files, except for the health check, and never as a list.
    From 23.11 on, a name without a folder is a file beside slurm.conf, *conf*; earlier releases do not run it.
    """
    beside = conf.parent if _release(config) >= BESIDE_CONF else None
    return {name: _hook_of(_values(config, name), folder / script, name, beside) for name, script in HOOKS.items()}


def _values(config: Mapping[str, str], name: str) -> list[str]:
    """Return the values of *name*: one in SLURM 22.05; Prolog[0] and so on in 24.05, which runs all of them."""
    lines = (value for key, value in config.items() if re.fullmatch(rf"{name}(\[\d+\])?", key))
    return [line for line in lines if line not in UNSET]


def _release(config: Mapping[str, str]) -> tuple[int, ...]:
    """Return year and month of the SLURM release that printed *config*; Prolog[0] means 24.05 or later."""
    found = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    if found is not None:
        return int(found[1]), int(found[2])
    return SEVERAL if any(re.fullmatch(r"(Prolog|Epilog)\[\d+\]", key) for key in config) else ()


def _hook_of(values: list[str], ours: Path, name: str, beside: Path | None) -> Hook:
    paths: list[Path] = []
    missing: list[str] = []
    misread = ""
    for value in values:
        is_full = value.startswith("/")
        place = value if is_full or beside is None or name == PERIODIC else str(beside / value)
        # As in SLURM's glob(3), and unlike Path.glob, no pattern matches dotfiles, such as disabled scripts.
        means = [place] if name == PERIODIC else sorted(glob.glob(place))  # noqa: PTH207
        found = [Path(path) for path in means if path.startswith("/") and os.path.lexists(path)]
        paths += found
        if not found:
            missing.append(value)
            misread = _misread(value, name) if re.search(r"[,;\s]", value) or not is_full else misread
    calls = tuple(str(ours) for path in paths if path == ours or _calls(_commands(_text(path) or ""), str(ours)))
    return Hook(" and ".join(values), tuple(map(_entry, paths)), calls, tuple(missing), misread)


def _misread(value: str, name: str) -> str:
    """Return the correction of *value*, for which there is no file."""
    if not re.search(r"[,;\s]", value):
        return "write the full path: SLURM before 23.11 requires it, later releases search the folder of slurm.conf"
    several = "" if name == PERIODIC else ", or a pattern such as /etc/slurm/prolog.d/*"
    return (
        "SLURM reads the value as one file name, without a list or arguments:"
        f" name one script that calls the others with their arguments{several}"
    )


def awaiting_of(config: Mapping[str, str], written: Mapping[str, str], folder: Path, conf: Path) -> Mapping[str, Hook]:
    """Return the scripts in *written*, the settings of *conf*, that SLURM has not loaded."""
    values = {name: written.get(name.lower(), "") for name in HOOKS}
    waits = {name: value for name, value in values.items() if value not in (*UNSET, *_values(config, name))}
    release = {"SLURM_VERSION": config["SLURM_VERSION"]} if "SLURM_VERSION" in config else {}
    return {name: hook for name, hook in hooks_of({**waits, **release}, folder, conf).items() if name in waits}


_SHELL = re.compile(
    r"""(?P<kept> \\. | '[^']*' | "(?:\\.|[^"\\])*" | (?<![\s;&|()])\# )
    | \# [^\n]*
    | <<-?[ \t]*['"\\]?(?P<end>\w+)['"]?(?P<behind>[^\n]*)\n(?:[^\n]*\n)*?\t*(?P=end)(?=\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
"""Units of shell syntax: quotes, a comment, whose # begins a word, and a here-document."""


def _commands(script: str) -> str:
    """Return *script* without comments: a script that is named only in a comment is not called."""
    # The added line feed makes a # at the very start begin a comment too.
    return _SHELL.sub(lambda found: found["kept"] or found["behind"] or "", f"\n{script}")


def _calls(commands: str, ours: str) -> bool:
    """Return whether *commands* execute *ours*. If sourced, it finds none of its files and ends the site's script."""
    return ours in commands and not re.search(rf"(?<![^\s;&|(){{}}])(\.|source)[ \t]+[\"']?{re.escape(ours)}", commands)


def _admin_level(uid: int | None) -> str | None:
    """Return the AdminLevel of the agent's user in SLURM's accounting, or None if it is unknown."""
    program = shutil.which("sacctmgr", path=SEARCHED)
    if program is None or uid is None:
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
        done = Runner().run((program, "-nP", "show", "user", name, "format=AdminLevel"), LIMIT_SECONDS).checked()
    except (KeyError, OSError, RunError):
        return None
    return next(iter(done.output.decode("utf-8", "replace").split()), None)
