"""The page about SLURM, followed to the letter on a real cluster with jobs, of which one node lacks the scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.pages import Block, Command, blocks, runs, shell_environment
from fakes.slurm_cluster import NO_DEVICE_NODES, SlurmCluster, SlurmOptions
from fakes.slurm_gate import GATE_FILES, Gate, accelerator

from nodevet.agent.cli import main

NODES = ("n1", "n2", "n3")
ON_EACH = "every node of a cluster, as root"
EIGHT = tuple(accelerator(minor) for minor in range(8))

SSH = """#!/bin/sh
[ "$1" = -n ] && [ -d {site}/$2 ] || exit 255
RUNTIME_DIRECTORY={site}/$2/run CONFIGURATION_DIRECTORY={site}/$2
export RUNTIME_DIRECTORY CONFIGURATION_DIRECTORY
node=$2
shift 2
exec "$@" --scripts {site}/$node/etc
"""
"""Nodes of the cluster share a machine: what is typed on one runs here, with the places of that node."""

HOOK = """#!/bin/sh
case $SLURMD_NODENAME in
{lines}
esac
"""


class Site:
    """A cluster without a prolog, whose nodes have a state file each, and nothing in /etc/slurm/nodevet."""

    def __init__(self, repository: Path, directory: Path) -> None:
        """Lay out three nodes; /etc/slurm/nodevet of node N is ``N/etc``."""
        self.page = blocks((repository / "docs/how-to/slurm.md").read_text())
        self.directory = directory
        self.gates = {node: Gate(repository, directory / node, ("sh",)) for node in NODES}
        for node, gate in self.gates.items():
            source = directory / node / "source"
            shutil.copytree(repository / "deploy/slurm", source)
            shipped = (source / "gate.conf").read_text()
            (source / "gate.conf").write_text(shipped.replace("/run/nodevet", str(gate.runtime), 1))
            gate.write(*EIGHT, expires_in=3600)
        hooks = directory / "hooks"
        hooks.mkdir()
        for script in ("prolog.sh", "epilog.sh"):
            lines = "\n".join(f"{node}) exec {directory}/{node}/etc/{script} ;;" for node in NODES)
            (hooks / script).write_text(HOOK.format(lines=lines))
            (hooks / script).chmod(0o755)
        self.slurm = SlurmCluster(directory / "cluster", SlurmOptions(prolog_flags="", prolog_timeout_seconds=0))

    def follow(self, block: Block, node: str = "") -> list[Command]:
        """Type *block* of the page, on *node* where it is for each, else at the controller."""
        environment = shell_environment(self.directory, {"SLURM_CONF": str(self.slurm.configuration)})
        ssh = self.directory / "bin" / "ssh"
        ssh.write_text(SSH.format(site=self.directory))
        ssh.chmod(0o755)
        replace = {
            "/path/to/nodevet/deploy/slurm": f"{self.directory}/{node}/source",
            "/etc/slurm/slurm.conf": str(self.slurm.configuration),
            "/etc/slurm/nodevet": f"{self.directory}/{node}/etc" if node else f"{self.directory}/hooks",
        }
        return runs(block, self.directory, environment, replace)

    def on(self, place: str) -> list[Block]:
        """Return the blocks of the page that are typed at *place*, in order."""
        return [block for block in self.page if block.place == place]

    def states(self) -> dict[str, str]:
        """Return what SLURM says of each node."""
        return {node: self.slurm.node_state(node) for node in NODES}


@pytest.fixture
def site(repository: Path, tmp_path: Path) -> Iterator[Site]:
    """The cluster, running."""
    try:
        laid_out = Site(repository, tmp_path)
    except PermissionError:
        pytest.skip(NO_DEVICE_NODES)
    with laid_out.slurm:
        yield laid_out


def test_an_update_by_the_page_writes_into_no_script_that_may_be_starting(repository: Path, tmp_path: Path) -> None:
    """The kernel starts none that is open for writing, and SLURM drains the node. The settings stay."""
    (block,) = (found for found in blocks((repository / "docs/how-to/slurm.md").read_text()) if found.place == ON_EACH)
    source, folder = tmp_path / "source", tmp_path / "etc"
    shutil.copytree(repository / "deploy/slurm", source)
    replace = {"/path/to/nodevet/deploy/slurm": str(source), "/etc/slurm/nodevet": str(folder)}
    runs(block, tmp_path, shell_environment(tmp_path), replace)
    assert {path.name for path in folder.iterdir()} == {*GATE_FILES, "gate.conf"}
    (folder / "gate.conf").write_text("mode=gate\n")
    with ExitStack() as stack:
        starting = {name: stack.enter_context((folder / name).open()) for name in GATE_FILES}
        for name in GATE_FILES:
            (source / name).write_text("#!/bin/sh\n# of the update\n")
        runs(block, tmp_path, shell_environment(tmp_path), replace)
        written_into = [name for name, file in starting.items() if "# of the update" in file.read()]
    assert written_into == []
    assert all((folder / name).read_text().endswith("# of the update\n") for name in GATE_FILES)
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.sh")} == {0o755}
    assert {path.name for path in folder.iterdir()} == {*GATE_FILES, "gate.conf"}
    assert (folder / "gate.conf").read_text() == "mode=gate\n"


def test_the_page_followed_to_the_letter_drains_nobody(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops at the node without scripts, and drains none when it goes on: not even one with a broken GPU."""
    slurm = site.slurm
    (install,) = site.on(ON_EACH)
    check, merge, reconfigure = site.on("the controller of a cluster")
    running = slurm.submit("sleep 300", "-w", "n1", "--gres=gpu:1")
    slurm.wait(lambda: slurm.job_state(running) == "RUNNING", "a job runs")
    for node in ("n1", "n2"):
        site.follow(install, node)
    before = slurm.configuration.read_text().rstrip("\n")  # as some programs that write it leave it
    before = re.sub(
        r"^SchedulerParameters=(.*)", r" schedulerparameters = \1  # tuned by ops", before, flags=re.MULTILINE
    )
    slurm.configuration.write_text(before)

    slurm.run("scontrol", "update", "PartitionName=main", "Nodes=n[1-2]")  # as for a repair; its first job comes later
    (told,) = site.follow(check)
    assert told.output == ("n3 is not ready",)
    slurm.run("scontrol", "update", "PartitionName=main", "Nodes=n[1-3]")
    assert "Go on only when this prints nothing" in (Path(__file__).parents[1] / "docs/how-to/slurm.md").read_text()
    assert slurm.configuration.read_text() == before

    site.follow(install, "n3")
    (told,) = site.follow(check)
    assert told.output == ()
    broken = (accelerator(0, "failed", "hard"), *EIGHT[1:])
    site.gates["n2"].write(*broken, never=True, expires_in=3600)
    site.follow(merge)
    site.follow(reconfigure)
    slurm.wait(lambda: "hooks/prolog.sh" in slurm.run("scontrol", "show", "config"), "the prolog is loaded")
    assert ",nohold_on_prolog_fail" in slurm.run("scontrol", "show", "config")
    for node in NODES:
        done = slurm.srun("-w", node, "--gres=gpu:1", "true")
        assert done.returncode == 0, done.stderr
    decisions = {node: [line.split(" ")[0] for line in gate.lines()] for node, gate in site.gates.items()}
    assert decisions == {"n1": ["open"], "n2": ["observed"], "n3": ["open"]}
    assert [state for state in site.states().values() if "drain" in state or "down" in state] == []
    assert slurm.job_state(running) == "RUNNING"

    for name, value in (
        ("RUNTIME_DIRECTORY", site.gates["n1"].runtime),
        ("CONFIGURATION_DIRECTORY", site.directory),
    ):
        monkeypatch.setenv(name, str(value))
    (site.directory / "nodevet.toml").write_text(f'[slurm]\nnode_name = "n1"\nconf = "{slurm.configuration}"\n')
    assert main(["slurm", "check", "--scripts", str(site.directory / "n1/etc")]) == os.EX_OK, capsys.readouterr().out

    # That the page stops at a node without scripts is what keeps it from being drained.
    for name in GATE_FILES:
        (site.directory / "n3/etc" / name).unlink()
    assert slurm.srun("-w", "n3", "true").returncode != 0
    slurm.wait(lambda: site.states()["n3"] == "drained", "a node without scripts is drained")


def site_epilog(repository: Path, ours: Path, *, ends: str) -> str:
    """Return an epilog of a site with the line of the page, which *ends* so."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (block,) = [block for block in page if block.place == "the epilog of a site"]
    return f"#!/bin/sh\n{block.text.replace('/etc/slurm/nodevet/epilog.sh', str(ours))}{ends}\n"


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("exit 3; true", 3),
        ("set -e; (exit 4); true", 4),
        ("exit 0; false", 0),
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_an_epilog_of_the_site_keeps_its_status_beside_ours(
    repository: Path, tmp_path: Path, shell: str, ends: str, status: int, is_there: bool
) -> None:
    """Before, that of ours hid it, so that a node which the site's epilog wanted drained took jobs."""
    words = shell.split(" ")
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here")
    gate = Gate(repository, tmp_path, ("sh",))
    (gate.claims / "7").touch()
    script = tmp_path / "site.sh"
    script.write_text(site_epilog(repository, gate.scripts / "epilog.sh" if is_there else tmp_path / "gone", ends=ends))
    done = subprocess.run([*words, str(script)], env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert (gate.claims / "7").exists() is not is_there


def test_an_epilog_of_the_site_that_fails_drains_the_node_beside_ours(repository: Path, tmp_path: Path) -> None:
    """With the line of the page, on a real SLURM; the claim is gone."""
    gate = Gate(repository, tmp_path / "n1", ("sh",))
    (gate.scripts / "epilog.sh").chmod(0o755)
    script = tmp_path / "epilog.sh"
    fails = f"touch {gate.claims}/$SLURM_JOB_ID\n[ $SLURM_JOB_ID != 2 ] || exit 3\ntrue"
    script.write_text(site_epilog(repository, gate.scripts / "epilog.sh", ends=fails))
    script.chmod(0o755)
    try:
        cluster = SlurmCluster(tmp_path / "cluster", SlurmOptions(nodes=1, epilog=script))
    except PermissionError:
        pytest.skip(NO_DEVICE_NODES)
    with cluster:
        assert cluster.srun("-w", "n1", "true").returncode == 0
        cluster.wait(lambda: cluster.node_state("n1") == "idle", "the first job is over")
        assert cluster.srun("-w", "n1", "true").returncode == 0
        cluster.wait(lambda: cluster.node_state("n1") == "drained", "the epilog of the site drains the node")
        assert cluster.node_reason("n1") == "Epilog error"
        assert list(gate.claims.iterdir()) == []


def test_the_page_asks_every_node_also_one_in_no_partition(repository: Path, tmp_path: Path) -> None:
    """``sinfo`` goes by partitions: a node that comes back to one after its repair had no scripts, and was drained."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (check,) = [block for block in page if "is not ready" in block.text]
    environment = shell_environment(tmp_path, {})
    lines = "".join(
        f"NodeName={name} Arch=x86_64 CPUs=8 State=IDLE {rest} Comment=NodeName=n9\n"
        for name, rest in (("n1", "Partitions=main"), ("n2", ""))
    )
    programs = {"ssh": "exit 1", "sinfo": "printf 'n1\\n'", "scontrol": f"cat <<END\n{lines}END"}
    for name, does in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (told,) = runs(check, tmp_path, environment)
    assert told.output == ("n1 is not ready", "n2 is not ready")


def test_a_step_of_the_page_typed_twice_restarts_no_agent(repository: Path, tmp_path: Path) -> None:
    """As after a way back: the second table is refused, and the agent keeps running as it was."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (step,) = [block for block in page if "[slurm]" in block.text and block.kind == "sh"]
    (tmp_path / "nodevet.toml").write_text("[gate]")
    environment = shell_environment(tmp_path, {})
    restarts = tmp_path / "restarts"
    replace = {"/etc/nodevet": str(tmp_path), "systemctl restart nodevet": f"echo again >>{restarts}"}
    runs(step, tmp_path, environment, replace)
    with pytest.raises(AssertionError, match="exits 78"):
        runs(step, tmp_path, environment, replace)
    assert restarts.read_text() == "again\n"


@pytest.mark.parametrize(
    ("line", "merges"),
    [
        ("Prolog=/site/prolog.sh", False),
        ("\tepilog = /site/epilog.sh", False),
        ("PrologFlags=Contain,X11", False),
        ("PrologSlurmctld=/site/provision.sh", False),
        ("EpilogSlurmctld=/site/release.sh", False),
        ("PrologEpilogTimeout=900", False),
        ("PrologTimeout=900", False),
        ("Include /etc/slurm/hooks.conf", False),
        ("\tinclude\thooks.conf", False),
        ("SchedulerParameters=bf_max_job_test=100,\\", False),
        ("#Prolog=/site/prolog.sh", True),
        ("EpilogMsgTime=2000", True),
        ("TaskProlog=/site/task.sh", True),
    ],
)
def test_the_page_changes_no_slurm_conf_that_has_scripts_of_its_own(
    repository: Path, tmp_path: Path, line: str, merges: bool
) -> None:
    """The last line of a name counts: the site's epilog would be lost, or be killed after 30 s, which drains nodes."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (block,) = [block for block in page if "slurm.conf.before-nodevet" in block.text]
    conf = tmp_path / "slurm.conf"
    before = f"ClusterName=x\n{line}\nSchedulerParameters=bf_interval=30\n"
    conf.write_text(before)
    (told,) = runs(block, tmp_path, shell_environment(tmp_path, {}), {"/etc/slurm/slurm.conf": str(conf)})
    assert (conf.read_text() != before) is merges
    assert any("merge by hand" in row for row in told.output) is not merges
    assert (tmp_path / "slurm.conf.before-nodevet").exists() is merges
    once = conf.read_text()
    runs(block, tmp_path, shell_environment(tmp_path, {}), {"/etc/slurm/slurm.conf": str(conf)})
    assert conf.read_text() == once, "typed twice it leaves the way back as it was"


@pytest.mark.parametrize(
    ("plugins", "merges"), [("optional /usr/lib/tmp.so 40\n", False), ("# none\n\ninclude plugstack.conf.d/*\n", True)]
)
@pytest.mark.parametrize("place", ["plugstack.conf", "plugstack.conf.d/site.conf"])
def test_the_page_changes_no_slurm_conf_beside_plugins_of_spank(
    repository: Path, tmp_path: Path, plugins: str, merges: bool, place: str
) -> None:
    """Their epilogs have the time of ours: one of 40 s was killed after 30, and SLURM 22.05 drained the node."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (block,) = [block for block in page if "slurm.conf.before-nodevet" in block.text]
    conf, stack = tmp_path / "slurm.conf", tmp_path / place
    stack.parent.mkdir(exist_ok=True)
    for setting in ("", f"PlugStackConfig={stack}\n"):
        before = f"ClusterName=x\n{setting}SchedulerParameters=bf_interval=30\n"
        conf.write_text(before)
        stack.write_text(plugins)
        (told,) = runs(block, tmp_path, shell_environment(tmp_path, {}), {"/etc/slurm/": f"{tmp_path}/"})
        is_merged = merges and not setting
        assert (conf.read_text() != before) is is_merged
        assert any("merge by hand" in row for row in told.output) is not is_merged


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("SchedulerParameters=bf_interval=30", "bf_interval=30,nohold_on_prolog_fail"),
        ("SchedulerParameters\t=\tbf_interval=30\t# tuned", "bf_interval=30,nohold_on_prolog_fail"),
        ("\tschedulerParameters = bf_interval=30", "bf_interval=30,nohold_on_prolog_fail"),
        ("#SchedulerParameters=bf_interval=30", None),
        ("SchedulerType=sched/backfill", None),
    ],
)
def test_the_page_finds_the_scheduler_parameters_however_they_are_written(
    repository: Path, tmp_path: Path, line: str, value: str | None
) -> None:
    """Without the word SLURM holds the jobs of a closed gate; a line that goes on was cut in two, for every command."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (block,) = [block for block in page if "slurm.conf.before-nodevet" in block.text]
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\n{line}\n")
    runs(block, tmp_path, shell_environment(tmp_path, {}), {"/etc/slurm/slurm.conf": str(conf)})
    written = conf.read_text()
    if value is None:
        assert written == f"ClusterName=x\n{line}\n"
    else:
        (changed,) = [entry for entry in written.splitlines() if "schedulerparameters" in entry.lower()]
        assert changed.partition("=")[2].split("#")[0].strip() == value


def test_the_last_step_of_the_page_leaves_the_modes_of_checks_alone(repository: Path, tmp_path: Path) -> None:
    """A site that lets one check only gate has said so."""
    page = blocks((repository / "docs/how-to/slurm.md").read_text())
    (step,) = [block for block in page if 'mode = "drain"' in block.text and block.kind == "sh"]
    before = '[checks.thermal]\nmode = "gate"\n[gate]\n# ours\nmode = "gate"\n\n[checks.links]\nmode = "gate"\n'
    (tmp_path / "nodevet.toml").write_text(before)
    replace = {"/etc/nodevet": str(tmp_path), "systemctl restart nodevet": "true", "nodevet config check": "true"}
    runs(step, tmp_path, shell_environment(tmp_path, {}), replace)
    after = (tmp_path / "nodevet.toml").read_text()
    assert after == before.replace('# ours\nmode = "gate"', '# ours\nmode = "drain"')


def test_a_file_that_is_a_link_stays_one(repository: Path, tmp_path: Path) -> None:
    """Cluster managers keep slurm.conf elsewhere: a file in the place of the link would be another than theirs."""
    typed = re.findall(r"^sed -i .*", (repository / "docs/how-to/slurm.md").read_text(), re.MULTILINE)
    texts = {
        "/etc/slurm/slurm.conf": "SchedulerParameters=bf_interval=30\n",
        "/etc/slurm/nodevet/gate.conf": "mode=observe\n",
        "/etc/nodevet/nodevet.toml": '[slurm]\nwriter = "observe"\n[gate]\nmode = "gate"\n',
    }
    (tmp_path / "shared").mkdir()
    for name, text in texts.items():
        link, file = tmp_path / Path(name).name, tmp_path / "shared" / Path(name).name
        file.write_text(text)
        link.symlink_to(file)
        typed = [line.replace(name, str(link)) for line in typed]
    for line in typed:
        subprocess.run(["/bin/sh", "-c", line], check=True)
    for name, text in texts.items():
        assert (tmp_path / Path(name).name).is_symlink(), name
        assert (tmp_path / "shared" / Path(name).name).read_text() != text, name


def placed(capsys: pytest.CaptureFixture[str], scripts: Path) -> tuple[str, str]:
    """Return what ``nodevet slurm check --node`` says of where *scripts* and what they read lie."""
    main(["slurm", "check", "--node", "--json", "--scripts", str(scripts)])
    document = json.loads(capsys.readouterr().out)
    (item,) = [item for item in document["items"] if item["name"] == "file system"]
    return item["status"], item["says"]


@pytest.mark.parametrize("name", ["gate.conf", "prolog.sh", "gres.sh", "runtime_dir"])
def test_what_leads_to_a_network_file_system_is_told(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """A gate.conf that a cluster manager keeps on a share holds each prolog, like scripts that lie there."""
    gate = Gate(repository, tmp_path, ("sh",))
    gate.write(*EIGHT)
    share = tmp_path / "share"
    share.mkdir()
    for variable, value in (("RUNTIME_DIRECTORY", gate.runtime), ("CONFIGURATION_DIRECTORY", tmp_path)):
        monkeypatch.setenv(variable, str(value))
    monkeypatch.setattr(
        "nodevet.agent.slurm.survey.file_system_of", lambda path: "nfs4" if share in (path, *path.parents) else "ext4"
    )
    assert placed(capsys, gate.scripts) == ("ok", "local")
    if name == "runtime_dir":
        gate.set(runtime_dir=share / "run")
    else:
        (gate.scripts / name).rename(share / name)
        (gate.scripts / name).symlink_to(share / name)
    status, says = placed(capsys, gate.scripts)
    assert (status, says.count("(nfs4)"), str(share) in says) == ("warning", 1, True)


def test_links_that_lead_in_a_circle_are_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts are not there, and that is told; before, a traceback."""
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    assert placed(capsys, tmp_path / "there")[0] == "cannot tell"
    assert main(["slurm", "check", "--node", "--scripts", str(tmp_path / "there")]) == 2


def test_a_folder_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever is not root may not look into /etc/slurm on some sites; before, a traceback."""
    locked, is_link, readlink = tmp_path / "slurm", Path.is_symlink, Path.readlink

    def refuse(path: Path) -> bool:
        if locked in path.parents:
            raise PermissionError(13, "Permission denied")
        return is_link(path)

    def gone(path: Path) -> Path:
        if path.name == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return readlink(path)

    monkeypatch.setattr(Path, "is_symlink", refuse)
    monkeypatch.setattr(Path, "readlink", gone)
    (tmp_path / "gone").symlink_to("there")
    for folder in (locked / "nodevet", tmp_path / "gone"):
        assert main(["slurm", "check", "--node", "--scripts", str(folder)]) == 2
        assert "Traceback" not in capsys.readouterr().err


def restarts(text: str) -> list[str]:
    """Return the daemons in the order in which *text* has them restarted."""
    return re.findall(r"\b(slurmctld|slurmd)\b", text.partition("restart")[2].partition("(")[0].partition(":")[0])


def test_the_page_restarts_for_a_new_type_of_gres_and_drains_nobody(repository: Path, tmp_path: Path) -> None:
    """In its order, beside running jobs; slurmctld came first, and drained each node for GPUs nobody reported."""
    page = (repository / "docs/how-to/slurm.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `GresTypes=gpu`")]
    order = restarts(row)
    assert sorted(order) == ["slurmctld", "slurmd"]
    try:
        slurm = SlurmCluster(tmp_path, SlurmOptions(nodes=2, cpus=1))
    except PermissionError:
        pytest.skip(NO_DEVICE_NODES)
    gres = tmp_path / "gres.conf"
    # With config_overrides SLURM believes its file, whatever a slurmd reports.
    after = slurm.configuration.read_text().replace("SlurmdParameters=config_overrides\n", "")
    devices = gres.read_text()
    slurm.configuration.write_text(re.sub(r"^GresTypes=.*\n| Gres=\S+", "", after, flags=re.MULTILINE))
    gres.unlink()
    with slurm:
        jobs = [slurm.submit("sleep 300", "-w", node) for node in slurm.nodes]
        slurm.wait(lambda: all(slurm.job_state(job) == "RUNNING" for job in jobs), "a job runs on each node")
        slurm.configuration.write_text(after)
        gres.write_text(devices)
        for daemon in order:
            if daemon == "slurmctld":
                slurm.restart_controller()
            else:
                for node in slurm.nodes:
                    slurm.restart_node(node)
            # Whoever types this takes longer than a registration.
            slurm.wait(
                lambda: all("SlurmdStartTime=2" in shown(slurm, node) for node in slurm.nodes), "each is registered"
            )
        assert [slurm.node_reason(node) for node in slurm.nodes] == ["", ""]
        assert [slurm.job_state(job) for job in jobs] == ["RUNNING", "RUNNING"]
        assert all("Gres=gpu:h100:8" in shown(slurm, node) for node in slurm.nodes)


def shown(slurm: SlurmCluster, node: str) -> str:
    """Return what SLURM shows of *node*."""
    return slurm.run("scontrol", "show", "node", node)
