"""Judges whether the scripts of deploy/slurm are safe to install, or work as installed. Pure functions of Facts.

Each item gives the finding, with its value, and the next step. survey.py reads the facts.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping

import msgspec

from nodevet.checks.core.model import Mode
from nodevet.exporters.statefile.reader import Absent

from .checkup_gpus import gres_types, mapping
from .facts import CLUSTER, Facts, Hook, Item, Status, cannot_tell, ok, warning, wrong

SCRIPTS = ("gate.sh", "gres.sh", "prolog.sh", "epilog.sh", "healthcheck.sh")
EXECUTED = ("prolog.sh", "epilog.sh", "healthcheck.sh")

WRITABLE_BY_OTHERS = 0o022
UNSET = ("", "(null)")
"""SLURM's text for a setting without a value."""
WITHOUT_END = 65534
"""SLURM's value for a time without a limit."""

BY_RENAMING = (
    "Copy each file under another name, then mv it: if a job starts while cp writes the prolog, SLURM drains the node"
)
"""The kernel does not execute a file that is open for writing."""

PATIENCE_LEFT_SECONDS = 2
"""SLURM logs a prolog as hung this long (s) before MessageTimeout."""


def items(facts: Facts, *, only_node: bool = False) -> tuple[Item, ...]:
    """Return all items; with *only_node*, only those that need no answer from SLURM."""
    found = [_present(facts), _owned(facts), _placed(facts), _rehearsed(facts), *_settings(facts)]
    found += [_runtime(facts), _state(facts), _claims(facts), mapping(facts), _consistent(facts), *_agent(facts)]
    if only_node:
        return tuple(found)
    return (*found, *(msgspec.structs.replace(item, area=CLUSTER) for item in _cluster(facts)))


def worst(found: tuple[Item, ...]) -> Status:
    """Return the worst status: wrong first, then cannot tell."""
    order = tuple(Status)
    return max((item.status for item in found), key=order.index, default=Status.CANNOT_TELL)


def modes(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return each setting that limits the effect of a hard fault, and their combined effect."""
    gate = facts.gate if isinstance(facts.gate, Mapping) else {}
    slurm = facts.settings.slurm
    return (
        ("gate.conf mode", gate.get("mode", "cannot tell")),
        ("gate.conf on_stale", gate.get("on_stale", "cannot tell")),
        ("gate.conf on_driver_refusal", gate.get("on_driver_refusal", "cannot tell")),
        ("[gate] mode", facts.settings.gate.mode.value),
        ("[slurm] writer", slurm.writer),
        ("[slurm] permit", slurm.permit),
        *((f"[checks.{name}]", says) for name, says in _held_back(facts).items()),
        ("combined effect", _together(facts, gate.get("mode", ""))),
    )


def _together(facts: Facts, mode: str) -> str:
    site, slurm = facts.settings.gate.mode, facts.settings.slurm
    permitted = slurm.permit == "local" or slurm.writer == "drain"
    closes = mode == "gate" and site.rank >= Mode.GATE.rank and permitted
    drains = slurm.writer == "drain" and site is Mode.DRAIN
    effect = (
        f"{'closes the gate' if closes else 'closes no gate'} and {'drains' if drains else 'does not drain'} the node"
    )
    apart = ", ".join(f"{name} ({says})" for name, says in _held_back(facts).items())
    but = f", except for faults of {apart}" if apart and (closes or drains) else ""
    return f"a hard fault {effect}{but}"


def _held_back(facts: Facts) -> dict[str, str]:
    """Return the checks that are disabled or have a lower mode than the site, each with its setting."""
    site, checks = facts.settings.gate.mode, facts.settings.checks
    lower = {name: entry for name, entry in checks.items() if not entry.enabled or entry.mode.rank < site.rank}
    return {name: f"mode {entry.mode.value}" if entry.enabled else "disabled" for name, entry in lower.items()}


# On this node.


def _present(facts: Facts) -> Item:
    missing = _missing(facts)
    not_run = [entry.not_run for entry in facts.scripts if entry.path.endswith(EXECUTED) and entry.not_run]
    if missing:
        return wrong(
            "scripts",
            f"missing, or not regular files: {', '.join(missing)}",
            f"copy deploy/slurm to {facts.folder}: SLURM drains a node that lacks its prolog. {BY_RENAMING}",
        )
    if not_run:
        return wrong(
            "scripts",
            f"cannot be executed: {', '.join(not_run)}",
            f"copy them again with chmod 755: SLURM drains a node whose prolog it cannot execute. {BY_RENAMING}",
        )
    return ok("scripts", f"{len(facts.scripts)} in {facts.folder}")


def _missing(facts: Facts) -> list[str]:
    """Return the scripts that are missing or not regular files."""
    return [entry.path for entry in facts.scripts if entry.uid is None or entry.trouble]


def _placed(facts: Facts) -> Item:
    """Judge whether a prolog depends on a network file system: if that hangs, SLURM kills it and drains the node."""
    says = f"on a network file system: {', '.join(facts.remote)}"
    step = (
        "copy the scripts to each node's own disk and name those in Prolog= and Epilog=; if gres.conf is shared, set"
        " gpus= in gate.conf: if the file server hangs for PrologEpilogTimeout=, SLURM drains each node at its next job"
    )
    if facts.remote:
        return warning("file system", says, step)
    if isinstance(facts.gate, str):  # also where a script is missing: runtime_dir is unknown then
        return cannot_tell("file system", facts.gate)
    return ok("file system", "local")


def _owned(facts: Facts) -> Item:
    trusted = {0, facts.state_uid if facts.state_uid is not None else 0}
    entries = (*facts.scripts, facts.gate_conf, *facts.parents)
    foreign = [
        f"{entry.path} (uid {entry.uid})" for entry in entries if entry.uid is not None and entry.uid not in trusted
    ]
    open_to_all = [
        f"{entry.path} (mode {entry.mode & 0o7777:04o})"
        for entry in entries
        if entry.uid is not None and entry.mode & WRITABLE_BY_OTHERS and not entry.mode & stat.S_ISVTX
    ]
    if foreign or open_to_all:
        says = "; ".join(
            ([f"not owned by root: {', '.join(foreign)}"] if foreign else [])
            + ([f"writable by others: {', '.join(open_to_all)}"] if open_to_all else [])
        )
        return wrong("owner", says, "chown root, chmod go-w: slurmd runs the scripts as root")
    if missing := _missing(facts):
        return cannot_tell("owner", f"missing: {', '.join(missing)}")
    return ok("owner", "owned by root, writable by root only")


def _rehearsed(facts: Facts) -> Item:
    if isinstance(facts.rehearsal, str):
        return cannot_tell("test run", facts.rehearsal)
    if facts.rehearsal:
        return wrong(
            "test run", "; ".join(facts.rehearsal), f"copy deploy/slurm to {facts.folder} again. {BY_RENAMING}"
        )
    return ok(
        "test run",
        "a copy of the scripts opens the gate on a healthy state and an unknown word, and closes it on a hard fault",
    )


def _settings(facts: Facts) -> Iterator[Item]:
    gate = facts.gate
    if isinstance(gate, str):
        yield cannot_tell("gate.conf", gate)
        return
    if gate.get("found") != "yes":
        yield warning("gate.conf", "missing: the prolog only observes", f"copy it to {facts.folder}")
    elif gate.get("slip"):
        yield wrong(
            "gate.conf",
            f"not understood: {gate['slip']}",
            "write one setting per line, without quotes and without spaces around =; an invalid file closes nothing",
        )
    else:
        yield ok("gate.conf", f"understood, mode={gate.get('mode')}")


def _runtime(facts: Facts) -> Item:
    agents = facts.settings.agent.runtime_dir
    if isinstance(facts.gate, str):
        return cannot_tell("runtime_dir", facts.gate)
    ours = facts.gate.get("runtime_dir", "")
    if ours != agents:
        return wrong(
            "runtime_dir",
            f"gate.conf has {ours}, but the agent uses {agents}",
            f"set runtime_dir={agents} in gate.conf, so that the prolog finds the state file",
        )
    return ok("runtime_dir", ours)


def _state(facts: Facts) -> Item:
    state = facts.state
    if isinstance(state, Absent):
        return wrong("state file", state.reason, "start the agent; see systemctl status nodevet")
    if facts.uptime_seconds >= state.fresh_until_uptime:
        age = facts.uptime_seconds - state.fresh_until_uptime
        return wrong("state file", f"{facts.state_path} expired {age:.0f} s ago", "systemctl status nodevet")
    says = f"{facts.state_path} says {state.state}, generation {state.generation}, for {state.node}"
    if state.state == "unknown":
        return warning("state file", f"{says}: {state.reason}", "run nodevet status")
    return ok("state file", says)


def _claims(facts: Facts) -> Item:
    entry = facts.claims
    if entry.uid is None or entry.trouble:
        return wrong(
            "claims",
            f"{entry.path}: {entry.trouble or 'missing'}",
            "start the agent, which creates this folder; without the folder, a burn-in could start beside a job",
        )
    if entry.uid != facts.state_uid:
        return wrong(
            "claims",
            f"{entry.path} belongs to uid {entry.uid}, and the state file to uid {facts.state_uid}",
            "check and remove it, then restart the agent",
        )
    return ok("claims", entry.path)


def _consistent(facts: Facts) -> Item:
    mode = facts.gate.get("mode") if isinstance(facts.gate, Mapping) else None
    site, slurm = facts.settings.gate.mode, facts.settings.slurm
    together = _together(facts, mode or "")
    if mode is None:
        return cannot_tell("modes", str(facts.gate))
    if isinstance(facts.running, str):
        return cannot_tell("modes", facts.running, "systemctl restart nodevet")
    others = facts.running.others(facts.settings) if facts.running else ""
    if others:
        return wrong("modes", others, "systemctl restart nodevet: a reload does not load [slurm]")
    if mode == "gate" and site is Mode.OBSERVE:
        return warning(
            "modes", together, 'mode=gate in gate.conf has no effect while [gate] mode = "observe" in nodevet.toml'
        )
    if mode == "gate" and slurm.permit == "cluster" and slurm.writer != "drain":
        return warning(
            "modes",
            together,
            'mode=gate in gate.conf has no effect without a permit: set [slurm] writer = "drain", or permit = "local",'
            " which ignores the limits of the cluster",
        )
    if mode == "gate" and slurm.permit == "local" and slurm.writer == "off":
        return warning(
            "modes",
            together,
            "the agent does not notice a resume, so the gate closes again until `nodevet ack`: set [slurm]"
            ' writer = "observe", which reads and never writes',
        )
    if slurm.writer == "drain" and site is Mode.OBSERVE:
        return warning("modes", together, '[slurm] writer = "drain" has no effect while [gate] mode = "observe"')
    if slurm.writer == "drain" and mode == "observe":
        does = "drains" if site is Mode.DRAIN else "marks closed gates in SLURM"
        return warning("modes", together, f"the agent {does} while the gate only observes: set mode=gate in gate.conf")
    site_closes = mode == "gate" and site is not Mode.OBSERVE
    silent = [name for name, says in _held_back(facts).items() if says != f"mode {Mode.GATE.value}"]
    if site_closes and silent:
        tables = ", ".join(f"[checks.{name}]" for name in silent)
        step = f"mode=gate in gate.conf has no effect for faults of these checks: see {tables} in nodevet.toml"
        return warning("modes", together, step)
    return ok("modes", together)


def _agent(facts: Facts) -> Iterator[Item]:
    """Yield the running agent's problem with SLURM: its unit may restrict it more than a person's shell."""
    running = facts.running
    if (
        running is None
        or isinstance(running, str)
        or running.writer == "off"
        or running.trouble == facts.forgotten != ""
    ):
        return
    if running.trouble:
        step = "run scontrol as the unit does: slurm.conf must be readable for all, and outside of /home and /root"
        yield warning("agent", running.trouble, step)
    else:
        yield ok("agent", "reports no problem with SLURM")


# In the cluster.


def _cluster(facts: Facts) -> Iterator[Item]:
    config = facts.config
    if isinstance(config, str):
        yield cannot_tell("slurm.conf", config, "check that slurmctld runs and that scontrol is installed on this node")
        return
    yield _named(facts)
    if facts.forgotten and facts.settings.slurm.writer != "drain":  # otherwise the agent removes it
        says, _, step = facts.forgotten.partition("type: ")
        yield warning("mark", says.rstrip(), step)
    yield _hook(facts, "Prolog", "prolog.sh")
    yield _hook(facts, "Epilog", "epilog.sh")
    yield from _periodic(facts)
    yield _flags(config)
    yield _held(config)
    yield from _patience(facts, config)
    yield gres_types(facts, config)
    yield _slurmd_user(facts, config)
    yield _rights(facts, config)


def _named(facts: Facts) -> Item:
    """Judge whether slurmctld knows this node by the name that the agent uses: otherwise it never gets a permit."""
    if facts.unknown_node:
        return wrong(
            "node name",
            f"SLURM shows no node {facts.node}: {facts.unknown_node}",
            "set [slurm] node_name to the name of this node in `sinfo -N`: without it, the agent gets no permit",
        )
    if facts.machine:
        return wrong(
            "node name",
            f"{facts.node} is another machine in SLURM, and this one is its node {facts.machine}",
            f'set [slurm] node_name = "{facts.machine}", or leave it out: the agent gets no permit for another node',
        )
    return ok("node name", f"SLURM knows {facts.node}")


def _hook(facts: Facts, name: str, script: str) -> Item:
    hook, waits = facts.hooks.get(name, Hook("")), facts.awaiting.get(name)
    written = facts.written.get(name.lower(), "")
    ours = f"{facts.folder}/{script}"
    for judged, of in ((waits, "in slurm.conf, not loaded by SLURM yet: "), (hook, "")):
        if judged is not None and judged.named not in UNSET and judged.lacks:
            step = judged.misread or "copy the scripts to this node, or remove the line"
            says = f"{of}{judged.named}: {judged.lacks}"
            drains = f"SLURM drains this node with the next job{' after scontrol reconfigure' if of else ''}: {step}"
            return wrong(f"{name}=", says, drains)
    if hook.named in UNSET:
        waiting = f", slurm.conf says {written}" if written else ""
        step = "scontrol reconfigure" if written else "add it once `nodevet slurm check --node` is ok on every node"
        return warning(f"{name}=", f"not set{waiting}", step)
    if ours not in hook.calls:
        return warning(f"{name}=", f"{hook.named} does not call {ours}", f"merge: {_merged(name, ours)}")
    # slurmd reads the slurm.conf of its node. Its includes are not followed.
    if (facts.written and "include" not in facts.written) and (waits is not None or not written):
        says = f"{hook.named}, but slurm.conf of this node says {written or 'none'}, and its slurmd runs that"
        return warning(f"{name}=", says, "copy slurm.conf to this node; scontrol reconfigure")
    merged = "" if hook.named == ours else f", by {hook.named}"
    return ok(f"{name}=", ours + merged)


def _periodic(facts: Facts) -> Iterator[Item]:
    """Judge HealthCheckProgram= if it is set: SLURM runs one program, takes no pattern, and drains no node for it."""
    hook = facts.hooks.get("HealthCheckProgram", Hook(""))
    if hook.named in UNSET:
        return
    if not hook.lacks:
        yield ok("HealthCheckProgram=", hook.named)
        return
    step = hook.misread or "copy the scripts to this node, or remove the line"
    says = f"{hook.named}: {hook.lacks}"
    yield warning("HealthCheckProgram=", says, f"SLURM does not run it, and only slurmd logs this: {step}")


def _merged(name: str, ours: str) -> str:
    """Return the line by which a script of the site calls *ours*; an epilog keeps its own exit status."""
    calls = f"[ ! -x {ours} ] || {ours}"
    return f"{calls} || exit 1" if name == "Prolog" else f"trap 'status=$?; {calls}; exit \"$status\"' EXIT"


def _flags(config: Mapping[str, str]) -> Item:
    flags = config.get("PrologFlags", "")
    if {"alloc", "contain"} & set(flags.lower().split(",")):
        return ok("PrologFlags=", flags)
    return warning(
        "PrologFlags=",
        f"{flags}: the prolog runs at the first step, when the job has already started on other nodes",
        "add Alloc",
    )


def _held(config: Mapping[str, str]) -> Item:
    words = config.get("SchedulerParameters", "")
    # SLURM too searches the whole text, in upper or lower case.
    if "nohold_on_prolog_fail" in words.lower():
        return ok("SchedulerParameters=", "has nohold_on_prolog_fail")
    return warning(
        "SchedulerParameters=",
        "lacks nohold_on_prolog_fail: a batch job at a closed gate is held until somebody releases it",
        "add it to the existing values, separated by a comma",
    )


def _patience(facts: Facts, config: Mapping[str, str]) -> Iterator[Item]:
    gate = facts.gate if isinstance(facts.gate, Mapping) else {}
    probe, drain = (_seconds(gate.get(name, "")) or 0 for name in ("probe_wait_seconds", "drain_wait_seconds"))
    needs = probe + drain  # drain_wait_seconds covers both the permit and the drain
    # From 25.05 on, SLURM shows both timeouts if a site sets them separately.
    name = "PrologTimeout" if "PrologTimeout" in config else "PrologEpilogTimeout"
    limit = _seconds(config.get(name, ""))
    own = _own_scripts(facts, config)
    if limit is None or limit >= WITHOUT_END:
        yield warning(
            f"{name}=",
            f"{config.get(name, 'not shown')}: a hung file system blocks a node without limit",
            f"set more than {needs} and more than the time of {own}: SLURM kills a slower script and drains the node"
            if own
            else "set 30",
        )
    elif limit <= needs:
        yield wrong(
            f"{name}=",
            f"{limit} s, but the prolog may wait {needs} s: SLURM then kills it and drains the node",
            f"set more than {needs}, such as {max(30, needs + 10)}",
        )
    elif isinstance(facts.gate, str):
        yield cannot_tell(f"{name}=", f"{limit} s; how long the prolog waits: {facts.gate}")
    else:
        yield ok(f"{name}=", f"{limit} s" + (f", also for {own}" if own else ""))
    message = _seconds(config.get("MessageTimeout", ""))
    if message is not None and max(probe, drain) >= message - PATIENCE_LEFT_SECONDS:
        yield warning(
            "MessageTimeout=",
            f'{message} s: SLURM logs "Prolog hung" while the prolog waits up to {max(probe, drain)} s',
            "lower probe_wait_seconds and drain_wait_seconds in gate.conf",
        )


def _own_scripts(facts: Facts, config: Mapping[str, str]) -> str:
    """Return the site's own scripts that have the same timeout as ours, or an empty string."""
    hooks = ((name, facts.hooks.get(name, Hook("")).named) for name in ("Prolog", "Epilog"))
    named = [path for name, path in hooks if path != f"{facts.folder}/{name.lower()}.sh"]
    of_controller = re.compile(r"(PrologSlurmctld|EpilogSlurmctld)(\[\d+\])?")
    named += [value for key, value in config.items() if of_controller.fullmatch(key)]
    return ", ".join(path for path in named if path not in UNSET)


def _seconds(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


def _slurmd_user(facts: Facts, config: Mapping[str, str]) -> Item:
    user = config.get("SlurmdUser", "")
    uid = re.search(r"\((\d+)\)$", user)
    agents = facts.state_uid
    if uid is None:
        return cannot_tell("SlurmdUser=", f"{user or 'not shown'}", "scontrol show config")
    if agents is None:
        return cannot_tell("SlurmdUser=", f"{user}; the user of the agent is not known without a state file")
    if int(uid[1]) != agents:
        return wrong(
            "SlurmdUser=",
            f"{user} runs the prolog, the agent has uid {agents}: the prolog ignores the state file and logs nothing",
            "run slurmd and the agent as root",
        )
    return ok("SlurmdUser=", user)


def _rights(facts: Facts, config: Mapping[str, str]) -> Item:
    writer = facts.settings.slurm.writer
    if writer != "drain":
        return ok("rights", f'not needed: [slurm] writer = "{writer}"')
    agents = facts.state_uid
    slurm_user = re.search(r"\((\d+)\)$", config.get("SlurmUser", ""))
    if agents == 0 or (slurm_user is not None and agents == int(slurm_user[1])):
        return ok("rights", f"uid {agents} may drain")
    if facts.admin_level in ("Operator", "Administrator"):
        return ok("rights", f"uid {agents} is {facts.admin_level}")
    step = "run the agent as root or SlurmUser, or give its user AdminLevel=Operator with sacctmgr"
    if facts.admin_level is None:
        return cannot_tell("rights", f"the rights of uid {agents} are not shown", step)
    return wrong("rights", f"uid {agents} has AdminLevel={facts.admin_level}", step)
