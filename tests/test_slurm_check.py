"""What `nodevet slurm check` says of an installation: whatever drained a cluster before is seen before it does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.privileges import needs_root
from fakes.slurm_gate import GATE_FILES, Gate, Line, accelerator, linked

from nodevet.agent.cli import main
from nodevet.agent.config.load import load_configuration
from nodevet.agent.slurm.checkup import items, modes, worst
from nodevet.agent.slurm.facts import CLUSTER, NODE, Entry, Facts, Hook, Item, Status
from nodevet.agent.slurm.loaded import Running
from nodevet.agent.slurm.survey import awaiting_of, hooks_of, survey
from nodevet.checks.core.model import Mode
from nodevet.checks.engine.registry import installed
from nodevet.exporters.statefile.reader import uptime_seconds

EIGHT = tuple(accelerator(minor) for minor in range(8))

LOADED = {
    "Prolog": "{folder}/prolog.sh",
    "Epilog": "{folder}/epilog.sh",
    "PrologFlags": "Alloc",
    "PrologEpilogTimeout": "30",
    "MessageTimeout": "10 sec",
    "SchedulerParameters": "bf_interval=30,nohold_on_prolog_fail",
    "GresTypes": "gpu",
    "SlurmUser": "slurm(64030)",
    "SlurmdUser": "root(0)",
}


class Installed:
    """A node with the scripts, an agent's files, and what SLURM would say of it."""

    def __init__(self, repository: Path, folder: Path) -> None:
        """Install as the page says."""
        self.gate = Gate(repository, folder, ("sh",))
        for name in GATE_FILES:
            (self.gate.scripts / name).chmod(0o755)
        self.gate.write(*EIGHT)
        self.file = folder / "nodevet.toml"
        self.configure('[gate]\nmode = "drain"\n[slurm]\nwriter = "drain"\n')

    def configure(self, text: str) -> None:
        """Write the agent's configuration."""
        self.file.write_text(f'[agent]\nnode_name = "n1"\nruntime_dir = "{self.gate.runtime}"\n{text}')

    def facts(self, **config: str | None) -> Facts:
        """Return what is read on the node, beside a SLURM that has loaded what it should, but for *config*."""
        settings = load_configuration(self.file, installed(), overrides={})
        environment = {"SLURM_CONF": str(self.gate.gres.with_name("slurm.conf"))}
        read = survey(settings, self.gate.scripts, environment, only_node=True)
        folder = str(self.gate.scripts)
        loaded = {name: value.format(folder=folder) for name, value in LOADED.items()}
        loaded |= {name: value for name, value in config.items() if value is not None}
        hooks = {
            name: Hook(loaded[name], (Entry(loaded[name], 0, 0o755),), (f"{folder}/{name.lower()}.sh",))
            for name in ("Prolog", "Epilog")
        }
        return msgspec.structs.replace(read, config=loaded, hooks=hooks, gres_of_node="gpu:h100:8(S:0-1)")


@pytest.fixture
def node(repository: Path, tmp_path: Path) -> Installed:
    """A node on which all is well."""
    return Installed(repository, tmp_path)


@pytest.fixture(scope="module")
def good(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What is read where all is well."""
    return Installed(repository, tmp_path_factory.mktemp("good")).facts()


def statuses(facts: Facts, **changes: Any) -> dict[str, Status]:
    """Return how the items stand after *changes* of what was read."""
    return {item.name: item.status for item in items(msgspec.structs.replace(facts, **changes))}


def loading(facts: Facts, **config: str) -> Facts:
    """Return *facts* of a SLURM that has loaded *config*."""
    assert not isinstance(facts.config, str)
    return msgspec.structs.replace(facts, config={**facts.config, **config})


def set_to(facts: Facts, site: Mode, **slurm: str) -> Facts:
    """Return *facts* of an agent with other modes."""
    settings = facts.settings
    gate, writer = msgspec.structs.replace(settings.gate, mode=site), msgspec.structs.replace(settings.slurm, **slurm)
    return msgspec.structs.replace(facts, settings=msgspec.structs.replace(settings, gate=gate, slurm=writer))


def test_a_good_installation_is_ok(good: Facts) -> None:
    """Every item says so, with what it found; the modes are told in one table."""
    facts = good
    found = items(facts)
    assert [(item.name, item.says) for item in found if item.status is not Status.OK] == []
    assert {item.area for item in found} == {NODE, CLUSTER}
    assert len(found) >= 16
    assert all(item.says for item in found)
    assert dict(modes(facts))["combined effect"] == "a hard fault closes the gate and drains the node"
    assert worst(found) is Status.OK


@pytest.mark.parametrize(
    ("lacks", "not_told"),
    [
        ("scripts", {"owner", "file system", "test run", "gate.conf", "PrologEpilogTimeout="}),
        ("one script", {"owner", "file system", "test run", "gate.conf", "PrologEpilogTimeout="}),
        ("state file", {"gres mapping", "GresTypes=", "SlurmdUser=", "rights"}),
    ],
    ids=["scripts", "one script", "state file"],
)
def test_of_what_is_not_there_no_item_is_ok(node: Installed, lacks: str, not_told: set[str]) -> None:
    """Each that would look at it cannot tell; one beside them says that it is missing."""
    missing = {"scripts": GATE_FILES, "one script": GATE_FILES[:1], "state file": ()}[lacks]
    for name in missing:
        (node.gate.scripts / name).unlink()
    if lacks == "state file":
        (node.gate.runtime / "state").unlink()
    found = items(msgspec.structs.replace(node.facts(), gres_of_node=None))
    stands = {item.name: item.status for item in found}
    assert stands["state file" if lacks == "state file" else "scripts"] is Status.WRONG
    assert {name for name in not_told if stands[name] is not Status.CANNOT_TELL} == set()
    assert all(item.says for item in found)


def test_a_file_system_of_which_half_was_looked_at_is_not_ok(good: Facts) -> None:
    """Where runtime_dir lies, gate.conf says."""
    assert statuses(good, gate="gate.sh cannot be read")["file system"] is Status.CANNOT_TELL


@pytest.mark.parametrize(
    ("running", "status"),
    [
        (Running("drain", "drain", "cluster"), Status.OK),
        (Running("observe", "drain", "cluster"), Status.WRONG),
        ("the agent does not answer", Status.CANNOT_TELL),
    ],
    ids=["alike", "other", "silent"],
)
def test_an_agent_with_other_modes_than_the_file_is_wrong(good: Facts, running: Running | str, status: Status) -> None:
    """A file that was written and not loaded closes nothing, or goes on to drain."""
    assert statuses(good, running=running)["modes"] is status


def test_what_the_agent_cannot_ask_slurm_is_told(good: Facts) -> None:
    """Its unit may read less than the shell of the person who looks: before, all was ok, and it never had a permit."""
    running = Running("drain", "drain", "cluster")
    assert statuses(good, running=running)["agent"] is Status.OK
    denied = msgspec.structs.replace(running, trouble="no answer from SLURM: slurm.conf: Permission denied")
    assert statuses(good, running=denied)["agent"] is Status.WARNING
    assert "agent" not in statuses(good, running=denied, forgotten=denied.trouble), "another item tells it"
    assert "agent" not in statuses(good, running=msgspec.structs.replace(running, writer="off"))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda folder: (folder / "gres.sh").unlink(), "scripts"),
        (lambda folder: (folder / "prolog.sh").chmod(0o644), "scripts"),
        (lambda folder: (folder / "prolog.sh").write_text("#!/bin/sh\nexit 1\n"), "test run"),
    ],
    ids=["missing", "not executable", "fails"],
)
def test_who_is_told_to_copy_scripts_is_told_not_to_write_into_them(
    node: Installed, spoil: Callable[[Path], object], name: str
) -> None:
    """SLURM drains a node that starts one at that moment."""
    spoil(node.gate.scripts)
    (item,) = (item for item in items(node.facts()) if item.name == name)
    assert (item.status, "then mv" in item.next_step) == (Status.WRONG, True)


SPOILED: dict[str, tuple[Callable[[Installed], object], str, Status]] = {
    "a script is missing": (lambda n: (n.gate.scripts / "gres.sh").unlink(), "scripts", Status.WRONG),
    "the prolog is not executable": (lambda n: (n.gate.scripts / "prolog.sh").chmod(0o644), "scripts", Status.WRONG),
    "others may write a script": (lambda n: (n.gate.scripts / "gate.sh").chmod(0o666), "owner", Status.WRONG),
    "others may write the folder": (lambda n: n.gate.scripts.chmod(0o777), "owner", Status.WRONG),
    "others may write gate.conf": (lambda n: (n.gate.scripts / "gate.conf").chmod(0o666), "owner", Status.WRONG),
    "a folder by a link of others": (lambda n: linked(n.gate.scripts, n.file.parent), "owner", Status.WRONG),
    "gate.conf by a link of others": (
        lambda n: linked(n.gate.scripts / "gate.conf", n.file.parent),
        "owner",
        Status.WRONG,
    ),
    "a script is cut off": (
        lambda n: (n.gate.scripts / "gate.sh").write_text((n.gate.scripts / "gate.sh").read_text()[:3000]),
        "test run",
        Status.WRONG,
    ),
    "a prolog that does nothing": (
        lambda n: (n.gate.scripts / "prolog.sh").write_text("#!/bin/sh\nexit 0\n"),
        "test run",
        Status.WRONG,
    ),
    "a prolog that always fails": (
        lambda n: (n.gate.scripts / "prolog.sh").write_text("#!/bin/sh\nexit 1\n"),
        "test run",
        Status.WRONG,
    ),
    "an epilog that fails": (
        lambda n: (n.gate.scripts / "epilog.sh").write_text("#!/bin/sh\nexit 1\n"),
        "test run",
        Status.WRONG,
    ),
    "a mode that is not understood": (lambda n: n.gate.set(mode="Gate"), "gate.conf", Status.WRONG),
    "a mode with spaces": (
        lambda n: (n.gate.scripts / "gate.conf").write_text("mode = gate\n"),
        "gate.conf",
        Status.WRONG,
    ),
    "a mode below the end of settings": (
        lambda n: (n.gate.scripts / "gate.conf").write_text("mode=gate\n# end of settings\nmode=observe\n"),
        "gate.conf",
        Status.WRONG,
    ),
    "no gate.conf": (lambda n: (n.gate.scripts / "gate.conf").unlink(), "gate.conf", Status.WARNING),
    "another runtime directory": (lambda n: n.gate.set(runtime_dir="/run/elsewhere"), "runtime_dir", Status.WRONG),
    "no agent": (lambda n: n.gate.state.unlink(), "state file", Status.WRONG),
    "an old state file": (lambda n: n.gate.write(*EIGHT, expires_in=-5), "state file", Status.WRONG),
    "an old failure": (
        lambda n: n.gate.write(accelerator(0, "failed", "hard"), *EIGHT[1:], never=True, expires_in=-5),
        "state file",
        Status.WRONG,
    ),
    "others may write the state": (lambda n: n.gate.state.chmod(0o666), "state file", Status.WRONG),
    "no folder of claims": (lambda n: n.gate.claims.rmdir(), "claims", Status.WRONG),
    "gres.conf names other devices": (
        lambda n: n.gate.gres.write_text("Name=gpu File=/dev/nvidia[8-9]\n"),
        "gres mapping",
        Status.WRONG,
    ),
    "gres.conf names a device twice": (
        lambda n: n.gate.gres.write_text("Name=gpu File=/dev/nvidia[0-3]\nName=gpu File=/dev/nvidia[2-5]\n"),
        "gres mapping",
        Status.WRONG,
    ),
    "gres.conf leaves devices out": (
        lambda n: n.gate.gres.write_text("Name=gpu File=/dev/nvidia[0-5]\n"),
        "gres mapping",
        Status.WARNING,
    ),
    "GPUs with commas": (lambda n: n.gate.set(gpus="0,1,2,3,4,5,6,7"), "gate.conf", Status.WRONG),
    "no gres.conf": (lambda n: n.gate.gres.unlink(), "gres mapping", Status.WARNING),
    "a gate that nobody permits to close": (
        lambda n: n.configure('[slurm]\nwriter = "off"\n'),
        "modes",
        Status.WARNING,
    ),
    "a gate that no resume in SLURM opens": (
        lambda n: n.configure('[slurm]\npermit = "local"\n'),
        "modes",
        Status.WARNING,
    ),
    "a gate that the agent only lets observe": (
        lambda n: n.configure('[gate]\nmode = "observe"\n'),
        "modes",
        Status.WARNING,
    ),
    "a writer that may not drain": (
        lambda n: n.configure('[gate]\nmode = "observe"\n[slurm]\nwriter = "drain"\n'),
        "modes",
        Status.WARNING,
    ),
    "a writer beside a gate that observes": (lambda n: n.gate.set(mode="observe"), "modes", Status.WARNING),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_spoiled_on_the_node_is_seen(node: Installed, what: str) -> None:
    """And is told with what to do; nothing that others may write is run."""
    spoil, name, status = SPOILED[what]
    spoil(node)
    facts = node.facts()
    found = {item.name: item for item in items(facts, only_node=True)}
    assert found[name].status is status
    assert found[name].next_step
    assert worst(tuple(found.values())) is not Status.OK
    assert {item.area for item in found.values()} == {NODE}


UNSTARTABLE: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "a first line of Windows": lambda text: text.replace(b"\n", b"\r\n", 1),
    "no first line": lambda text: text.split(b"\n", 1)[1],
    "an empty line before it": lambda text: b"\n" + text,
    "an interpreter that is not here": lambda text: text.replace(b"/bin/sh", b"/opt/none/sh", 1),
}
"""A shell that is given the script runs it; the kernel does not, and SLURM drains the node."""


@pytest.mark.parametrize("what", UNSTARTABLE)
def test_a_script_that_the_kernel_cannot_start_is_seen(good: Facts, node: Installed, tmp_path: Path, what: str) -> None:
    """One of ours, and one of the site's that calls ours; a program is started as well as a script."""
    for path, folder in ((node.gate.scripts / "prolog.sh", node.gate.scripts), (tmp_path / "site.sh", None)):
        text = path.read_bytes() if folder else f"#!/bin/sh\n{good.folder}/prolog.sh || exit 1\n".encode()
        path.write_bytes(UNSTARTABLE[what](text))
        path.chmod(0o755)
        with pytest.raises(OSError):
            subprocess.run([path], check=False)
    assert {item.name: item for item in items(node.facts(), only_node=True)}["scripts"].status is Status.WRONG
    hooks = hooks_of({"Prolog": str(tmp_path / "site.sh")}, Path(good.folder), good_conf(good))
    assert statuses(good, hooks=hooks)["Prolog="] is Status.WRONG
    program = hooks_of({"Prolog": sys.executable}, Path(good.folder), good_conf(good))
    assert statuses(good, hooks=program)["Prolog="] is Status.WARNING


@needs_root
def test_what_another_user_may_write_is_not_run(node: Installed) -> None:
    """A script that somebody else put there would run with the rights of whoever checks."""
    canary = node.gate.runtime / "canary"
    (node.gate.scripts / "gate.sh").write_text(f"true >{canary}\n")
    os.chown(node.gate.scripts / "gate.sh", 65534, 65534)
    found = {item.name: item for item in items(node.facts(), only_node=True)}
    assert (found["owner"].status, found["test run"].status) == (Status.WRONG, Status.CANNOT_TELL)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("name", "config", "status"),
    [
        ("PrologFlags=", {"PrologFlags": "(null)"}, Status.WARNING),
        ("PrologFlags=", {"PrologFlags": "Contain,X11"}, Status.OK),
        ("SchedulerParameters=", {"SchedulerParameters": "bf_interval=30"}, Status.WARNING),
        ("SchedulerParameters=", {"SchedulerParameters": "(null)"}, Status.WARNING),
        ("SchedulerParameters=", {"SchedulerParameters": "bf_interval=30,NoHold_On_Prolog_Fail"}, Status.OK),
        ("SchedulerParameters=", {"SchedulerParameters": "NOHOLD_ON_PROLOG_FAIL=yes,defer"}, Status.OK),
        ("PrologFlags=", {"PrologFlags": "ALLOC"}, Status.OK),
        ("PrologEpilogTimeout=", {"PrologEpilogTimeout": "65534"}, Status.WARNING),
        ("PrologEpilogTimeout=", {"PrologEpilogTimeout": "9"}, Status.WRONG),
        ("MessageTimeout=", {"MessageTimeout": "7 sec"}, Status.WARNING),
        ("GresTypes=", {"GresTypes": "(null)"}, Status.WARNING),
        ("SlurmdUser=", {"SlurmdUser": "slurm(64030)"}, Status.WRONG),
        ("SlurmdUser=", {"SlurmdUser": ""}, Status.CANNOT_TELL),
    ],
)
def test_what_slurm_has_loaded_is_judged(good: Facts, name: str, config: dict[str, str], status: Status) -> None:
    """By what `scontrol show config` prints."""
    assert statuses(loading(good, **config)).get(name) is status


def test_a_prolog_waits_for_the_agent_once(good: Facts) -> None:
    """For the permit and the drain together, as long as `drain_wait_seconds` says; before, twice that was wanted."""
    assert statuses(loading(good, PrologEpilogTimeout="10"))["PrologEpilogTimeout="] is Status.OK


def test_a_gres_type_that_only_stands_in_the_file_needs_a_restart(good: Facts) -> None:
    """scontrol reconfigure does not load it, and says nothing."""
    facts = msgspec.structs.replace(loading(good, GresTypes="(null)"), written={"grestypes": "gpu"})
    item = next(item for item in items(facts) if item.name == "GresTypes=")
    assert item.status is Status.WRONG
    assert "restart every slurmd, and after it slurmctld" in item.next_step
    unknown = next(item for item in items(loading(good, GresTypes="(null)")) if item.name == "GresTypes=")
    assert "restart every slurmd, and after it slurmctld" in unknown.next_step, (
        "in the other order SLURM drains them all"
    )
    assert statuses(good, gres_of_node="gpu:h100:4")["GresTypes="] is Status.WARNING
    assert statuses(good, gres_of_node="gpu:h100:4,gpu:a100:4(IDX:0-3)")["GresTypes="] is Status.OK


@pytest.mark.parametrize(
    ("hook", "status"),
    [
        (Hook("(null)"), Status.WARNING),
        (Hook("/etc/slurm/prolog.sh"), Status.WRONG),
        (Hook("/etc/slurm/prolog.d/*"), Status.WRONG),
        (Hook("/site/p.sh", (Entry("/site/p.sh", 0, 0o644),), ("{folder}/prolog.sh",)), Status.WRONG),
        (Hook("/site/p.sh", (Entry("/site/p.sh", 0, 0o755),)), Status.WARNING),
        (Hook("/site/p.sh", (Entry("/site/p.sh", 0, 0o755),), ("{folder}/prolog.sh",)), Status.OK),
    ],
    ids=["none", "missing", "empty folder", "not executable", "another", "merged"],
)
def test_the_prolog_that_slurm_runs_is_ours_or_calls_ours(good: Facts, hook: Hook, status: Status) -> None:
    """One that is missing or cannot be executed on a node drains it with the next job."""
    calls = tuple(call.format(folder=good.folder) for call in hook.calls)
    hooks = {**good.hooks, "Prolog": msgspec.structs.replace(hook, calls=calls)}
    assert statuses(good, hooks=hooks)["Prolog="] is status


def test_a_script_that_was_put_aside_with_a_dot_is_none(good: Facts, tmp_path: Path) -> None:
    """A pattern of SLURM's passes over `.20-nodevet`, also where that is all there is: then the node drains."""
    ours, site, loaded = tmp_path / "20-nodevet", tmp_path / "10-site", {"Prolog": f"{tmp_path}/*"}
    for path, text in ((ours, f"#!/bin/sh\n{good.folder}/prolog.sh || exit 1\n"), (site, "#!/bin/sh\nexit 0\n")):
        path.write_text(text)
        path.chmod(0o755)
    found = []
    for aside in (None, ours, site):
        if aside:
            aside.rename(aside.with_name(f".{aside.name}"))
        found.append(statuses(good, hooks=hooks_of(loaded, Path(good.folder), good_conf(good)))["Prolog="])
    assert found == [Status.OK, Status.WARNING, Status.WRONG]
    (tmp_path / ".10-site.swp").write_text("of an editor")
    ours.with_name(".20-nodevet").rename(ours)
    assert statuses(good, hooks=hooks_of(loaded, Path(good.folder), good_conf(good)))["Prolog="] is Status.OK


def test_what_to_merge_into_an_epilog_is_the_line_of_the_page(good: Facts, repository: Path) -> None:
    """Which keeps the status of the site's: test_slurm_install.py tries it."""
    facts = msgspec.structs.replace(good, folder="/etc/slurm/nodevet")
    told = {item.name: item.next_step.removeprefix("merge: ") for item in items(facts)}
    page = (repository / "docs/how-to/slurm.md").read_text()
    assert told["Epilog="] in page.splitlines()
    assert f"`{told['Prolog='].replace('|', chr(92) + '|')}`" in page


def test_every_prolog_of_a_later_release_is_seen(good: Facts, tmp_path: Path) -> None:
    """From 24.05 on SLURM prints `Prolog[0]` and so on, and runs them all; one that is missing drains the node."""
    folder, site = Path(good.folder), tmp_path / "site.sh"
    site.write_text("#!/bin/sh\ntrue\n")
    site.chmod(0o755)
    loaded = {"Prolog[0]": str(site), "Prolog[1]": f"{folder}/prolog.sh", "Epilog[0]": f"{folder}/epilog.sh"}
    hooks = hooks_of(loaded, folder, good_conf(good))
    assert [entry.path for entry in hooks["Prolog"].files] == [str(site), f"{folder}/prolog.sh"]
    assert (statuses(good, hooks=hooks)["Prolog="], statuses(good, hooks=hooks)["Epilog="]) == (Status.OK, Status.OK)
    site.unlink()
    assert statuses(good, hooks=hooks_of(loaded, folder, good_conf(good)))["Prolog="] is Status.WRONG


def scripts_in(folder: Path, *names: str) -> list[Path]:
    """Write scripts of the site to *folder* that do nothing."""
    paths = [folder / name for name in names]
    for path in paths:
        path.write_text("#!/bin/sh\ntrue\n")
        path.chmod(0o755)
    return paths


@pytest.mark.parametrize("name", ["Prolog", "Epilog"])
@pytest.mark.parametrize(
    "value",
    [
        "{site},{ours}",
        "{ours},{site}",
        "{ours} --fast",
        "{site} {ours}",
        "{ours},",
        "{ours};{site}",
        "{folder}/*.sh,{site}",
    ],
)
@pytest.mark.parametrize("key", ["{name}", "{name}[1]"])
def test_slurm_takes_one_name_and_no_list(good: Facts, tmp_path: Path, name: str, value: str, key: str) -> None:
    """Not of paths, not of words behind one: it looks for a file of the whole name, and drains. Before, ok."""
    (site,) = scripts_in(tmp_path, "site.sh")
    ours = f"{good.folder}/{name.lower()}.sh"
    value = value.format(site=site, ours=ours, folder=good.folder)
    loaded = {key.format(name=name): value}
    if "[" in key:
        loaded[f"{name}[0]"] = ours
    (item,) = hook_items(good, name, loaded)
    assert (item.status, value in item.says) == (Status.WRONG, True)
    assert "without a list or arguments" in item.next_step
    assert "one script that calls the others" in item.next_step


def hook_items(good: Facts, name: str, config: dict[str, str], **changes: Any) -> list[Item]:
    """Return what is said of the script *name* where SLURM has loaded *config*."""
    hooks = hooks_of(config, Path(good.folder), good_conf(good))
    found = items(msgspec.structs.replace(good, hooks=hooks, **changes))
    return [item for item in found if item.name == f"{name}="]


def good_conf(good: Facts) -> Path:
    """Return the slurm.conf beside the gres.conf of *good*."""
    return Path(good.gres_path).with_name("slurm.conf")


def test_a_file_whose_name_has_a_comma_or_a_blank_is_one(good: Facts, tmp_path: Path) -> None:
    """SLURM starts it."""
    for path in scripts_in(tmp_path, "site.sh,x", "site.sh x"):
        path.write_text(f"#!/bin/sh\n{good.folder}/prolog.sh || exit 1\n")
        (item,) = hook_items(good, "Prolog", {"Prolog": str(path)})
        assert item.status is Status.OK, item


@pytest.mark.parametrize(
    ("version", "key", "status"),
    [
        ("22.05.8", "Prolog", Status.WRONG),
        ("23.02.7", "Prolog", Status.WRONG),
        ("23.11.0", "Prolog", Status.OK),
        ("24.05.3", "Prolog[0]", Status.OK),
        ("", "Prolog[0]", Status.OK),
        ("26.05.0-0rc1", "Prolog[0]", Status.OK),
        ("", "Prolog", Status.WRONG),
    ],
)
def test_a_name_without_a_folder_is_beside_slurm_conf_from_23_11_on(
    good: Facts, version: str, key: str, status: Status
) -> None:
    """Before, SLURM starts none: "is not fully qualified pathname"."""
    config = {key: "merged.sh", **({"SLURM_VERSION": version} if version else {})}
    (item,) = hook_items(good, "Prolog", config)
    assert item.status is Status.WRONG
    (path,) = scripts_in(good_conf(good).parent, "merged.sh")
    path.write_text(f"#!/bin/sh\n{good.folder}/prolog.sh || exit 1\n")
    (item,) = hook_items(good, "Prolog", config)
    path.unlink()
    assert item.status is status, item
    if status is Status.WRONG:
        assert "write the full path" in item.next_step


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("(null)", None),
        ("{ours}", Status.OK),
        ("{site}", Status.OK),
        ("{site},{ours}", Status.WARNING),
        ("{ours} --quiet", Status.WARNING),
        ("healthcheck.sh", Status.WARNING),
        ("{folder}/health*.sh", Status.WARNING),
        ("{folder}/gate.conf", Status.WARNING),
    ],
)
def test_a_health_check_that_slurm_cannot_start_is_told(
    good: Facts, tmp_path: Path, value: str, status: Status | None
) -> None:
    """It drains nothing, takes no pattern, and only slurmd's log would say so."""
    (site,) = scripts_in(tmp_path, "site.sh")
    value = value.format(site=site, ours=f"{good.folder}/healthcheck.sh", folder=good.folder)
    found = hook_items(good, "HealthCheckProgram", {"HealthCheckProgram": value})
    assert [item.status for item in found] == ([] if status is None else [status])
    assert all(value in item.says and "drains" not in item.next_step for item in found)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_line_that_waits_for_a_reconfigure_is_judged_before_it(node: Installed, loaded: bool) -> None:
    """`scontrol reconfigure` was the next step of a line that drains each node."""
    ours = f"{node.gate.scripts}/prolog.sh"
    conf = node.gate.gres.with_name("slurm.conf")
    for line, status in (
        (f"Prolog={ours},{ours}", Status.WRONG),
        (f'prolog = "{ours} --fast" # ours', Status.WRONG),
        (f"Prolog={ours} Epilog=/etc/epilog.sh", Status.OK if loaded else Status.WARNING),
        (f"Prolog={ours}", Status.OK if loaded else Status.WARNING),
    ):
        conf.write_text(f"{line}\n")
        good = node.facts()
        config = {"Prolog": ours} if loaded else {}
        awaiting = awaiting_of(config, good.written, node.gate.scripts, conf)
        (item,) = hook_items(good, "Prolog", config, awaiting=awaiting)
        assert (item.status, item.next_step == "scontrol reconfigure") == (status, status is Status.WARNING), item


def test_every_script_of_the_controller_has_the_same_time(good: Facts) -> None:
    """Later releases show `PrologSlurmctld[0]` and so on."""
    found = items(loading(good, **{"PrologSlurmctld[0]": "/site/a.sh", "PrologSlurmctld[1]": "/site/b.sh"}))
    (item,) = [item for item in found if item.name == "PrologEpilogTimeout="]
    assert "/site/a.sh, /site/b.sh" in item.says


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("#!/bin/sh\n# {ours} is not called any more\nexit 0\n", Status.WARNING),
        ("#!/bin/sh\n  #[ ! -x {ours} ] || {ours} || exit 1\n", Status.WARNING),
        ("#!/bin/sh\ntrue # {ours}\n", Status.WARNING),
        ("#!/bin/sh\n[ ! -x {ours} ] || {ours} || exit 1 # first\n", Status.OK),
        ('#!/bin/sh\nlogger "job #1"; n=${{#x}}; {ours} || exit 1\n', Status.OK),
        ("#!/bin/sh\nx=${{a#b}} # {ours}\n", Status.WARNING),
        ("#!/bin/sh\necho \"it's # here\" # {ours}\n", Status.WARNING),
        ("#!/bin/sh\n(true)# {ours}\n", Status.WARNING),
        ("#!/bin/sh\necho it\\'s # {ours}\n", Status.WARNING),
        ("#!/bin/sh\ncat <<'END' >&2\nit's over\nEND\n# {ours}\n", Status.WARNING),
        ("#!/bin/sh\ncat <<-END\n{ours}\n\tEND\ntrue\n", Status.WARNING),
        ("#!/bin/sh {ours}\n", Status.WARNING),
        ("#!/bin/sh\necho 'a\n# b'; x=${{a#b}}; {ours} # first\n", Status.OK),
        ("#!/bin/sh\ncat <<END && {ours} || exit 1\nit's a job\nEND\n", Status.OK),
        ("#!/bin/sh\n[ ! -x {ours} ] || . {ours} || exit 1\nmount /scratch\n", Status.WARNING),
        ("#!/bin/bash\nsource '{ours}'\nmount /scratch\n", Status.WARNING),
        ("#!/bin/sh\n. /etc/site.sh {ours}; {ours} || exit 1\n", Status.OK),
    ],
    ids=[
        "comment", "taken out", "behind a command", "called", "signs of no comment", "behind an expansion",
        "behind quotes", "behind a bracket", "behind an escaped quote", "behind a here-document", "in a here-document",
        "the first line", "behind a quoted comment", "beside a here-document", "read in with a dot", "read in by bash",
        "beside another that is read in",
    ],
)  # fmt: skip
def test_a_script_that_is_named_in_a_comment_is_not_called(
    good: Facts, tmp_path: Path, script: str, status: Status
) -> None:
    """A line that somebody took out calls nothing: the gate is not there."""
    site = tmp_path / "site.sh"
    site.write_text(script.format(ours=f"{good.folder}/prolog.sh"))
    site.chmod(0o755)
    assert (
        statuses(good, hooks=hooks_of({"Prolog": str(site)}, Path(good.folder), good_conf(good)))["Prolog="] is status
    )


def test_a_rehearsal_writes_nothing_where_the_agent_counts(node: Installed, tmp_path: Path) -> None:
    """A script that does not understand runtime_dir is told, and its claims and decisions are no real ones."""
    script, seen = node.gate.scripts / "gate.sh", tmp_path / "seen"
    shipped = (Path(__file__).parents[1] / "deploy/slurm/gate.sh").read_text()
    damaged = shipped.replace("runtime_dir=/*) runtime_dir=$value ;;", f"runtime_dir=/*) echo $runtime_dir >>{seen} ;;")
    assert damaged != shipped
    script.write_text(damaged)
    assert "test run" in {item.name for item in items(node.facts()) if item.status is Status.WRONG}
    places = set(seen.read_text().split())
    assert len(places) == 2  # that of the shipped script, when its settings are read, and that of the rehearsal
    assert next(place for place in places if place != "/run/nodevet").startswith(tempfile.gettempdir())


def test_a_name_that_slurm_does_not_know_is_wrong(node: Installed, tmp_path: Path) -> None:
    """A host name with its domain, or another node's: the agent would ask in vain, and no gate would ever close."""
    program = tmp_path / "scontrol"
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n"show config") echo "SlurmUser = root(0)" ;;\n'
        '"show node n1") printf "NodeName=n1 Arch=x86_64\\n   Gres=gpu:8\\n   State=IDLE\\n" ;;\n'
        '*) echo "Node $3 not found" >&2; exit 1 ;;\nesac\n'
    )
    program.chmod(0o755)
    for name, status in (("n1", Status.OK), ("n1.cluster.example", Status.WRONG)):
        node.configure(f'[slurm]\nnode_name = "{name}"\nscontrol = "{program}"\n')
        settings = load_configuration(node.file, installed(), overrides={})
        facts = survey(settings, node.gate.scripts, {"SLURM_CONF": str(node.gate.gres.with_name("slurm.conf"))})
        item = next(item for item in items(facts) if item.name == "node name")
        assert item.status is status, item
    assert "n1.cluster.example not found" in item.says and "sinfo -N" in item.next_step


def test_slurm_is_asked_as_the_agent_asks_it(node: Installed, tmp_path: Path) -> None:
    """SLURM_CONF of the person's shell is nothing that the agent sees: an ok by it would be a gate without a permit."""
    program, mine = tmp_path / "scontrol", node.gate.gres.with_name("slurm.conf")
    program.write_text(
        f'#!/bin/sh\n[ "$SLURM_CONF" = {mine} ] || {{ echo "no configuration source" >&2; exit 1; }}\n'
        'echo "SlurmUser = root(0)"\n'
    )
    program.chmod(0o755)
    for conf, is_answered in (("", False), (f'conf = "{mine}"\n', True)):
        node.configure(f'[slurm]\nscontrol = "{program}"\n{conf}')
        settings = load_configuration(node.file, installed(), overrides={})
        facts = survey(settings, node.gate.scripts, {"SLURM_CONF": str(mine)})
        assert isinstance(facts.config, str) is not is_answered
        if not is_answered:
            item = next(item for item in items(facts) if item.name == "slurm.conf")
            assert item.status is Status.CANNOT_TELL and f'set [slurm] conf = "{mine}"' in item.says


def test_a_time_for_prologs_is_that_of_the_sites_own_too(good: Facts) -> None:
    """SLURM kills a script that takes longer, and drains the node: a diagnosis in an epilog may take minutes."""
    for own in (
        msgspec.structs.replace(good, hooks={**good.hooks, "Epilog": Hook("/site/e.sh")}),
        loading(good, PrologSlurmctld="/site/e.sh"),
    ):
        for limit, says in (("65534", "more than the time of /site/e.sh"), ("30", "30 s, also for /site/e.sh")):
            found = items(loading(own, PrologEpilogTimeout=limit))
            (item,) = [item for item in found if item.name == "PrologEpilogTimeout="]
            assert says in f"{item.says} {item.next_step}"
    (bare,) = [
        item for item in items(loading(good, PrologEpilogTimeout="65534")) if item.name == "PrologEpilogTimeout="
    ]
    assert bare.next_step == "set 30"


@pytest.mark.parametrize(
    ("shown", "name", "status"),
    [
        ({"PrologTimeout": "3", "EpilogTimeout": "60"}, "PrologTimeout=", Status.WRONG),
        ({"PrologTimeout": "60", "EpilogTimeout": "3"}, "PrologTimeout=", Status.OK),
        ({"PrologEpilogTimeout": "3"}, "PrologEpilogTimeout=", Status.WRONG),
    ],
)
def test_what_later_releases_show_of_the_time_of_a_prolog_counts(
    good: Facts, shown: dict[str, str], name: str, status: Status
) -> None:
    """From 25.05 on SLURM shows two times where they differ: one that is too short drains nodes past every limit."""
    assert not isinstance(good.config, str)
    config = {key: value for key, value in good.config.items() if key != "PrologEpilogTimeout"}
    assert statuses(good, config={**config, **shown})[name] is status


def test_a_name_of_another_machine_is_wrong(node: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One nodevet.toml with a node_name went to every node: SLURM knows the name, and it is not this machine's."""
    program = tmp_path / "scontrol"
    form = "NodeName={0} Arch=x86_64\\n   NodeAddr={0} NodeHostName={0} Version=22.05.8\\n   State=IDLE\\n\\n"
    first, both = form.format("n1"), form.format("n1") + form.format("n2")
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n"show config") echo "SlurmUser = root(0)" ;;\n'
        f'"show node n1") printf "{first}" ;;\n"show nodes") printf "{both}" ;;\n*) exit 1 ;;\nesac\n'
    )
    program.chmod(0o755)
    node.configure(f'[slurm]\nnode_name = "n1"\nscontrol = "{program}"\n')
    settings = load_configuration(node.file, installed(), overrides={})
    for host, status in (("n1.cluster.example", Status.OK), ("n2", Status.WRONG), ("login", Status.OK)):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        facts = survey(settings, node.gate.scripts, {"SLURM_CONF": str(node.gate.gres.with_name("slurm.conf"))})
        item = next(item for item in items(facts) if item.name == "node name")
        assert item.status is status, item
        assert status is Status.OK or "its node n2" in item.says


def test_a_mark_that_nobody_may_take_back_is_told_with_its_command(node: Installed, tmp_path: Path) -> None:
    """The agent of a closed gate was set to observe: the node counts until somebody empties the field."""
    program = tmp_path / "scontrol"
    shown = (
        "NodeName=n1 Arch=x86_64\\n   State=IDLE\\n   Comment=rack 7\\n   Extra=nodevet: gate closed, 1795342985 a\\n"
    )
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n"show config") echo "SlurmUser = root(0)" ;;\n'
        f'"show node n1") printf "{shown}" ;;\n*) exit 1 ;;\nesac\n'
    )
    program.chmod(0o755)
    typed = ["scontrol update nodename=n1 extra="]
    for mode, steps in (("observe", typed), ("off", typed), ("drain", [])):
        node.configure(f'[slurm]\nnode_name = "n1"\nwriter = "{mode}"\nscontrol = "{program}"\n')
        settings = load_configuration(node.file, installed(), overrides={})
        facts = survey(settings, node.gate.scripts, {"SLURM_CONF": str(node.gate.gres.with_name("slurm.conf"))})
        assert [item.next_step for item in items(facts) if item.name == "mark"] == steps


def test_a_rehearsal_that_finds_no_room_is_cannot_tell(node: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for temporary files is full, read-only or gone: no bug of ours, and nothing else is left out."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    found = {item.name: item for item in items(node.facts())}
    assert found["test run"].status is Status.CANNOT_TELL and "/nonexistent" in found["test run"].says
    assert found["scripts"].status is Status.OK


@pytest.mark.parametrize(
    ("uid", "level", "status"),
    [
        (0, None, Status.OK),
        (64030, None, Status.OK),
        (991, "Operator", Status.OK),
        (991, "None", Status.WRONG),
        (991, None, Status.CANNOT_TELL),
    ],
)
def test_who_may_drain_is_told(good: Facts, uid: int, level: str | None, status: Status) -> None:
    """Root, SlurmUser, or an operator of the accounting; and nobody has to where the agent does not write."""
    assert statuses(good, state_uid=uid, admin_level=level)["rights"] is status
    off = set_to(good, Mode.DRAIN, writer="off")
    assert statuses(off, state_uid=uid, admin_level=level)["rights"] is Status.OK


def test_a_controller_that_does_not_answer_is_cannot_tell(good: Facts) -> None:
    """What is wrong on the node still comes first, and without asking SLURM the node is ok."""
    facts = msgspec.structs.replace(good, config="scontrol show config: no answer within 5 s")
    assert worst(items(facts)) is Status.CANNOT_TELL
    assert worst(items(facts, only_node=True)) is Status.OK
    assert worst(items(msgspec.structs.replace(facts, rehearsal=("wrong",)))) is Status.WRONG
    assert worst(()) is Status.CANNOT_TELL


@pytest.mark.parametrize("site", list(Mode))
@pytest.mark.parametrize("writer", ["off", "observe", "drain"])
@pytest.mark.parametrize("permit", ["cluster", "local"])
@pytest.mark.parametrize("mode", ["gate", "observe"])
def test_the_modes_say_what_they_do_together(good: Facts, site: Mode, writer: str, permit: str, mode: str) -> None:
    """Whether the gate closes needs all three of gate.conf, the agent's mode and somebody who permits."""
    facts = msgspec.structs.replace(set_to(good, site, writer=writer, permit=permit), gate={"mode": mode})
    together = dict(modes(facts))["combined effect"]
    closes = mode == "gate" and site is not Mode.OBSERVE and (writer == "drain" or permit == "local")
    assert together.startswith("a hard fault closes the gate" if closes else "a hard fault closes no gate")
    assert together.endswith("drains the node") is (writer == "drain" and site is Mode.DRAIN)


@pytest.mark.parametrize(
    ("writer", "site", "mode"),
    [("observe", Mode.DRAIN, "observe"), ("drain", Mode.GATE, "gate"), ("drain", Mode.DRAIN, "gate")],
    ids=["observe", "gate", "drain"],
)
def test_the_modes_of_each_step_of_the_page_are_ok(good: Facts, writer: str, site: Mode, mode: str) -> None:
    """The second step warned that nothing drains, as the page wants it there."""
    facts = msgspec.structs.replace(set_to(good, site, writer=writer), gate={"mode": mode})
    assert statuses(facts)["modes"] is Status.OK


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ('mode = "observe"', Status.WARNING, "kernel-log (mode observe)"),
        ("enabled = false", Status.WARNING, "kernel-log (disabled)"),
        ('mode = "gate"', Status.OK, "kernel-log (mode gate)"),
        ('mode = "drain"', Status.OK, ""),
    ],
    ids=["observe", "off", "gate", "drain"],
)
def test_a_check_that_was_left_observing_is_told(node: Installed, text: str, status: Status, says: str) -> None:
    """Before, "a hard fault closes the gate and drains the node", of which none that the kernel log tells did."""
    node.configure(f'[gate]\nmode = "drain"\n[checks.kernel-log]\n{text}\n[slurm]\nwriter = "drain"\n')
    facts = node.facts()
    item = next(item for item in items(facts) if item.name == "modes")
    assert (item.status, item.says) == (status, dict(modes(facts))["combined effect"])
    assert item.says == "a hard fault closes the gate and drains the node" + (
        f", except for faults of {says}" if says else ""
    )
    assert ("[checks.kernel-log]" in dict(modes(facts))) is bool(says)
    observing = msgspec.structs.replace(facts, gate={"mode": "observe"})
    assert "except for faults of" in dict(modes(observing))["combined effect"] or not says


def lent(slot: str) -> Line:
    """Return the line of a board for which this node has no driver, such as one that it lends to a guest."""
    return msgspec.structs.replace(accelerator("-", pci=0), pci="-", id=f"pci-{slot}")


def test_a_board_that_slurm_does_not_find_is_none_of_its_gpus(node: Installed) -> None:
    """It was counted: "9 GPUs by PCI address", each one place too far."""
    node.gate.gres.write_text("AutoDetect=nvml\n")
    node.gate.write(lent("0000:05:00.0"), *EIGHT)
    found = {item.name: item for item in items(node.facts())}
    assert (found["gres mapping"].status, found["GresTypes="].status) == (Status.OK, Status.OK)
    assert found["gres mapping"].says.startswith("8 GPUs by PCI address: 0 1 2 3 4 5 6 7")


@pytest.mark.parametrize(
    ("has", "status"),
    [
        ("Prolog={folder}/prolog.sh\nEpilog={folder}/epilog.sh\n", Status.OK),
        ("prolog = {folder}/prolog.sh # ours\nEpilog={folder}/epilog.sh\n", Status.OK),
        ("Include hooks.conf\nClusterName=x\n", Status.OK),
        ("", Status.OK),
        ("ClusterName=x\n", Status.WARNING),
        ("Prolog={folder}/healthcheck.sh\n", Status.WARNING),
    ],
    ids=["alike", "other letters", "included", "no file", "before", "another"],
)
def test_a_slurm_conf_that_was_not_copied_is_told(node: Installed, has: str, status: Status) -> None:
    """slurmd reads the file of its node: before, `ok` by what slurmctld has loaded, and no prolog ran there."""
    conf = node.gate.gres.with_name("slurm.conf")
    conf.write_text(has.format(folder=node.gate.scripts))
    facts = node.facts()
    assert not isinstance(facts.config, str)
    waits = awaiting_of(facts.config, facts.written, node.gate.scripts, conf)
    found = {item.name: item for item in items(msgspec.structs.replace(facts, awaiting=waits))}
    assert found["Prolog="].status is status
    assert ("copy slurm.conf" in found["Prolog="].next_step) is (status is Status.WARNING)


def test_gres_conf_is_that_of_the_slurm_that_runs(node: Installed, tmp_path: Path) -> None:
    """One of another build lay where most have it: "ok" by that, and the prolog read the one beside slurm.conf."""
    settings = load_configuration(node.file, installed(), overrides={})
    own = tmp_path / "own"
    own.mkdir()
    (own / "slurm.conf").write_text("ClusterName=x\n")
    (own / "gres.conf").write_text("Name=gpu File=/dev/nvidia[1-8]\n")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n[ $2 != config ] || echo 'SLURM_CONF = {own}/slurm.conf'\n")
    scontrol.chmod(0o755)
    slurm = msgspec.structs.replace(settings.slurm, scontrol=str(scontrol))
    facts = survey(msgspec.structs.replace(settings, slurm=slurm), node.gate.scripts, {})
    assert facts.gres_path == str(own / "gres.conf")
    (mapping,) = (item for item in items(facts) if item.name == "gres mapping")
    assert mapping.status is Status.WRONG
    (own / "gres.conf").write_text("Name=gpu File=/dev/nvidia[0-7]\n")
    facts = survey(msgspec.structs.replace(settings, slurm=slurm), node.gate.scripts, {})
    (mapping,) = (item for item in items(facts) if item.name == "gres mapping")
    assert (mapping.status, mapping.says.endswith(f"by {own}/gres.conf")) == (Status.OK, True)
    told = survey(msgspec.structs.replace(settings, slurm=slurm), node.gate.scripts, {"SLURM_CONF": "/x/slurm.conf"})
    assert told.gres_path == "/x/gres.conf", "as slurmd hands it on"


def test_a_writer_beside_a_gate_that_observes_is_told_by_what_it_does(good: Facts) -> None:
    """It fills places under the limits, and closes nothing."""
    for site, does in ((Mode.DRAIN, "drains"), (Mode.GATE, "marks closed gates")):
        facts = msgspec.structs.replace(set_to(good, site, writer="drain"), gate={"mode": "observe"})
        item = next(item for item in items(facts) if item.name == "modes")
        assert item.status is Status.WARNING
        assert f"the agent {does}" in item.next_step


def test_scripts_on_a_network_file_system_are_told(node: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it stands still a prolog waits, and SLURM drains every node at its next job; seen on SLURM 22.05."""
    shared = {node.gate.gres}

    def kind(path: Path) -> str:
        return "nfs4" if path in shared else "ext4"

    monkeypatch.setattr("nodevet.agent.slurm.survey.file_system_of", kind)
    assert statuses(node.facts())["file system"] is Status.WARNING
    node.gate.set(gpus="minor")
    assert statuses(node.facts())["file system"] is Status.OK, "gres.conf is not read then"
    shared.add(node.gate.scripts)
    found = next(item for item in items(node.facts(), only_node=True) if item.name == "file system")
    assert (found.status, str(node.gate.gres) in found.says) == (Status.WARNING, False)
    assert "nfs4" in found.says


def test_that_every_gpu_counts_may_be_meant_so(node: Installed) -> None:
    """As with slices of boards: the page says to go on only where nothing is warned of."""
    node.gate.gres.unlink()
    assert statuses(node.facts())["gres mapping"] is Status.WARNING
    older = msgspec.structs.replace(node.facts(), gres=(("minor", "0,1"),))  # by scripts that took commas for numbers
    assert statuses(older)["gres mapping"] is Status.WARNING
    node.gate.set(gpus="all")
    assert statuses(node.facts())["gres mapping"] is Status.OK


def test_a_state_is_as_old_as_when_it_was_read(node: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts and a SLURM that take minutes to answer made the state of a live agent old."""
    began = uptime_seconds()
    late = [0.0]
    monkeypatch.setattr("nodevet.agent.slurm.survey.uptime_seconds", lambda: began + late[0])

    def slow(_folder: Path) -> tuple[str, ...]:
        late[0] = 3600.0
        return ()

    monkeypatch.setattr("nodevet.agent.slurm.survey._rehearsal", slow)
    assert statuses(node.facts())["state file"] is Status.OK


def test_the_command_prints_a_line_for_each_item_and_exits_by_the_worst(
    node: Installed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --node SLURM is not asked; --json has the same."""
    monkeypatch.setenv("SLURM_CONF", str(node.gate.gres.with_name("slurm.conf")))
    words = ["slurm", "check", "--node", "--scripts", str(node.gate.scripts), "--config", str(node.file)]
    assert main(words) == 0
    told = capsys.readouterr().out
    for name in ("scripts", "owner", "test run", "gate.conf", "runtime_dir", "state file", "claims", "gres mapping"):
        assert re.search(rf"^{re.escape(name)} +ok ", told, re.MULTILINE)
    assert "this command checked one node" in told
    node.gate.set(mode="Gate")
    assert main([*words, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["verdict"]) == ("nodevet.slurm-check/1", "wrong")
    (slip,) = [item for item in document["items"] if item["name"] == "gate.conf"]
    assert (slip["status"], slip["says"]) == ("wrong", "not understood: mode=Gate")
    assert document["modes"]["gate.conf mode"] == "observe"
