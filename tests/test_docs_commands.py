"""Every command that a page tells a reader to type is run, and prints what the page shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from fakes.host_tree import Files, node_files, pci_device, processor_files, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.pages import SLEEPING_LOAD, Block, Command, blocks, runs, same, shell_environment, stray_commands
from fakes.running_agent import RunningAgent
from fakes.slurm_cluster import NO_DEVICE_NODES
from fakes.slurm_page import PageCluster

ADDRESS = "http://127.0.0.1:10917"
"""Where the agent of the pages listens; the one under test has a port of its own."""

SIMULATED = "/run/nodevet/simulated/dgx-h100"
"""Where a simulated node of pages has its files when nothing else was said; so that is the agent's directory."""

FAULTY = "gpu-07"
PAGES = (
    "README.md",
    "docs/how-to/burn-in-a-node.md",
    "docs/how-to/configure.md",
    "docs/how-to/judge-saved-logs.md",
    "docs/how-to/read-a-finding.md",
    "docs/how-to/simulate-a-node.md",
    "docs/how-to/slurm.md",
    "docs/how-to/troubleshooting.md",
    "docs/reference/command-backend.md",
    "docs/tutorial/first-look.md",
)
NOT_RUN = {
    "a node, as root": "installs and starts a service: .ci/wheel-test installs, test_systemd.py checks the unit",
    "every node of a cluster, as root": "test_slurm_install.py follows the page on a cluster of three",
    "the controller of a cluster": "test_slurm_install.py follows the page on a cluster of three",
    "the epilog of a site": "a line to copy: test_slurm_install.py runs it, also on a cluster",
    "a prolog": "a script to copy, not a command to type: tests/test_exporter_statefile.py runs it",
    "a terminal of its own": "starts the agent that the blocks behind it ask, which is the place `a fire drill`",
    "a node with a wrong result": "loads a GPU that computes wrongly for 20 minutes: tests/test_retest.py has the rule",
    "a checkout": "installs or runs all tests: make says what it would do",
}
"""Places whose commands are only checked for what can be checked without changing this machine, and why."""


def pages(repository: Path) -> list[Path]:
    """Return every page that may hold commands."""
    return [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").rglob("*.md"))]


def faulty_tree(accelerators: int) -> Files:
    """The host of so many GPUs as its kernel shows it."""
    files = node_files() | processor_files(2, 2, 2, vendor="GenuineIntel", model="Intel(R) Xeon(R) Platinum 8480C")
    for slot in range(1, accelerators + 1):
        address = f"0000:{slot}0:00.0"
        files |= pci_device(address, "0x10de", "0x2330", "0x030200", driver="nvidia")
        files[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nBus Location: \t {address}\nDevice Minor: \t {slot - 1}\n"
        )
    return files


def _link_and_memory(nvml: FakeNvml) -> None:
    nvml.set("link_state.3.17", 0).set("ecc_uncorrected_volatile_dram.5", 2)


Fault = Callable[[FakeNvml], object]
FAULTS: dict[str, Fault] = {
    "a faulty node": _link_and_memory,
    "a node that lost a GPU": lambda nvml: nvml.fail_device(6),
    "a node that may not be read": lambda nvml: nvml.fail("", NvmlReturn.NO_PERMISSION, 2),
}
"""Faults that the fake driver plays on eight GPUs, by the place that pages name."""

DRIVER_FAULTS: dict[str, Fault] = {
    "a node without its driver": lambda nvml: nvml.fail("nvmlInitWithFlags", NvmlReturn.DRIVER_NOT_LOADED),
    "a node whose driver was replaced": lambda nvml: nvml.fail("nvmlInitWithFlags", NvmlReturn.LIB_RM_VERSION_MISMATCH),
    "a node whose driver lists nothing": lambda nvml: nvml.set("count", 0),
}
"""The same on one GPU, so that messages that list all of them are short."""


class Places:
    """The machines on which blocks run; one set per page, so that its blocks build on each other."""

    def __init__(self, repository: Path, directory: Path, fake_nvml: FakeNvml, stack: ExitStack) -> None:
        """Keep everything below *directory*, which has the *repository*'s ``deploy``; *stack* stops the agents."""
        (directory / "deploy").symlink_to(repository / "deploy")
        self.fake_nvml = fake_nvml
        self._repository = repository
        self._stack = stack
        self._directory = directory
        self._faults = 0
        self._agent: RunningAgent | None = None
        self._cluster: PageCluster | None = None
        self._name = ""
        self._machines: dict[str, Callable[[], tuple[Path, dict[str, str]]]] = {
            "this node": lambda: (directory, {}),
            "an agent without a probe": lambda: self._start(directory, '[load]\nprobe = "off"\n', {}),
            "a simulated node that loses a GPU": self._losing,
            "a simulated node": lambda: self._simulated(directory / "first-look" / "node.toml"),
            **{name: partial(self._faulty, fault, 8) for name, fault in FAULTS.items()},
            **{name: partial(self._faulty, fault, 1) for name, fault in DRIVER_FAULTS.items()},
            "a faulty node with its agent": self._faulty_agent,
            "a fire drill": lambda: self._simulated(directory / "drill.toml"),
        }

    def run(self, block: Block) -> list[Command]:
        """Run *block* where it wants to be run."""
        place, _, verdict = block.place.partition(", once ")
        if place.startswith("a SLURM cluster"):
            return self._on_cluster(block, place, verdict)
        assert place in self._machines, f"no test knows the place {place!r}; there are {', '.join(self._machines)}"
        if place != self._name:
            self._stop()
            self._place = self._machines[place]()
            self._name = place
        if verdict and self._agent is not None:
            self._agent.wait_for_verdict(verdict)
        directory, extra = self._place
        replace = {ADDRESS: self._agent.url, SIMULATED: str(self._agent.runtime_dir)} if self._agent else {}
        return runs(block, directory, shell_environment(directory, extra, SLEEPING_LOAD), replace)

    def _on_cluster(self, block: Block, place: str, state: str) -> list[Command]:
        """Run *block* beside the cluster of this page, which is started for its first, once its node is in *state*.

        The *place* may say that a GPU is lost there.
        """
        if self._cluster is None:
            try:
                cluster = PageCluster(self._repository, self._directory / "slurm", self.fake_nvml.library)
            except PermissionError:
                pytest.skip(NO_DEVICE_NODES)
            self._cluster = self._stack.enter_context(cluster)
        lost = re.search(r"loses GPU (\d+)", place)
        if lost:
            self._cluster.lose(int(lost[1]))
        if state:
            self._cluster.wait(state)
        environment = shell_environment(self._directory, self._cluster.environment)
        seen = runs(block, self._directory, environment, self._cluster.replace)
        self._cluster.after(block.text)
        return seen

    def _stop(self) -> None:
        if self._agent is not None:
            self._agent.stop()
            self._agent = None

    def _start(
        self, directory: Path, configuration: str, environment: dict[str, str], arguments: tuple[str, ...] = ()
    ) -> tuple[Path, dict[str, str]]:
        """Start an agent and wait until it is ready."""
        agent = RunningAgent(directory, configuration, environment=environment, arguments=arguments)
        self._agent = self._stack.enter_context(agent)
        agent.wait_for(lambda status: status["agent"]["ready"], what="the agent is not ready")
        return directory, environment

    def _simulated(self, scenario: Path) -> tuple[Path, dict[str, str]]:
        """Start the node of *scenario*, which keeps its files beside it; its commands run in the checkout."""
        self._start(scenario.parent, "", {}, ("--simulate", "dgx-h100", "--scenario", str(scenario)))
        places = {"STATE_DIRECTORY": scenario.parent / "state", "RUNTIME_DIRECTORY": scenario.parent / "run"}
        return self._directory, {name: str(path) for name, path in places.items()}

    def _losing(self) -> tuple[Path, dict[str, str]]:
        """Start the node of the shipped scenario, at once."""
        scenario = self._directory / "demonstration" / "lost.toml"
        scenario.parent.mkdir()
        scenario.write_text((self._repository / "deploy/scenarios/lost.toml").read_text().replace("30s", "0s"))
        return self._simulated(scenario)

    def _faulty(self, fault: Fault, accelerators: int) -> tuple[Path, dict[str, str]]:
        """Return the place of so many GPUs with *fault*: directory and environment."""
        self.fake_nvml.clear()
        fault(self.fake_nvml)
        self._faults += 1
        directory = self._directory / f"faulty{self._faults}"
        root = write_tree(directory / "root", faulty_tree(accelerators))
        (directory / "nodevet.toml").write_text(
            f'[agent]\nnode_name = "{FAULTY}"\nroot = "{root}"\ndeadline_seconds = 1.0\n[load]\nprobe = "off"\n'
            "[kernel_log]\nenabled = false\n"
        )
        return directory, self.fake_nvml.environment

    def _faulty_agent(self) -> tuple[Path, dict[str, str]]:
        directory, environment = self._faulty(_link_and_memory, 8)
        return self._start(directory, (directory / "nodevet.toml").read_text(), environment)


def test_no_command_stands_where_no_test_sees_it(repository: Path) -> None:
    """Commands are fenced as sh or console, and each block says where it runs."""
    found = {page.name: stray_commands(page.read_text()) for page in pages(repository)}
    assert {name: lines for name, lines in found.items() if lines} == {}
    homeless = [
        (page.name, block.text) for page in pages(repository) for block in blocks(page.read_text()) if not block.place
    ]
    assert homeless == []


def test_every_page_with_commands_is_run(repository: Path) -> None:
    """PAGES lists every page that holds a block to run."""
    found = {
        str(page.relative_to(repository))
        for page in pages(repository)
        if any(block.place not in NOT_RUN for block in blocks(page.read_text()))
    }
    assert found == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_a_page_do_what_it_shows(
    repository: Path, tmp_path: Path, fake_nvml: FakeNvml, request: pytest.FixtureRequest, name: str
) -> None:
    """Each block is run in its place, in order; its output is the one on the page, but for numbers and machines."""
    page = repository / name
    with ExitStack() as stack:
        places = Places(repository, tmp_path, fake_nvml, stack)
        for block in blocks(page.read_text()):
            if block.place in NOT_RUN:
                continue
            seen = places.run(block)
            if request.config.getoption("--update-golden"):
                old, new = (fenced(block, text) for text in (block.text, written_anew(block, seen)))
                page.write_text(page.read_text().replace(old, new))
                continue
            for shown, ran in zip(block.commands, seen, strict=True):
                told = "\n".join([f"$ {shown.line}", "the page shows:", *shown.output, "it prints:", *ran.output])
                assert block.kind == "sh" or same(shown.output, ran.output), told


def fenced(block: Block, text: str) -> str:
    """Return *text* as it stands in a page: the same commands may be shown in several places."""
    return f"<!-- on: {block.place} -->\n```{block.kind}\n{text}"


def written_anew(block: Block, seen: list[Command]) -> str:
    """Return the text of *block* with what was seen; output that the page shortens by ``...`` stays."""
    if block.kind == "sh":
        return block.text
    lines: list[str] = []
    for shown, ran in zip(block.commands, seen, strict=True):
        first, *more = shown.line.splitlines()
        keeps = any(line.strip() == "..." for line in shown.output) or same(shown.output, ran.output)
        lines += [f"$ {first}", *(f"> {line}" for line in more), *(shown.output if keeps else ran.output)]
    return "\n".join(lines) + "\n"


def test_commands_that_are_not_run_are_ones_that_exist(repository: Path) -> None:
    """A block that would change this machine is sound shell, its targets exist, and so do the files that it names."""
    for page in pages(repository):
        for block in blocks(page.read_text()):
            if block.place not in NOT_RUN:
                continue
            script = "\n".join(command.line for command in block.commands)
            assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0, script
            for words in re.findall(r"^make (.*?)(?:#.*)?$", script, re.M):
                done = subprocess.run(
                    ["sh", "-c", f"make --dry-run {words}"], cwd=repository, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"make {words}: {done.stderr}"
            for name in re.findall(r"(?:^| |nodevet/)((?:systemd|\.ci|docs|tests)/[\w.-]+\w)", script):
                assert (repository / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize(
    ("shown", "seen", "agrees"),
    [
        (("cpu  AMD EPYC  cpu-0  -  ok",), ("cpu     Other Model 12  cpu-0   S1  ok",), True),
        (("3 products verified, 0 wrong",), ("1234 products verified, 17 wrong",), True),
        (("a: ok",), ("a: failed",), False),
        (("first", "...", "last"), ("first", "x", "y", "last"), True),
        (("first", "...", "last"), ("first", "x"), False),
        ((), ("something",), False),
    ],
)
def test_output_agrees_but_for_numbers_and_machines(
    shown: tuple[str, ...], seen: tuple[str, ...], agrees: bool
) -> None:
    """Words count, numbers and models do not, and three dots stand for any lines."""
    assert same(shown, seen) is agrees


def test_a_command_that_fails_unseen_is_told(tmp_path: Path) -> None:
    """An exit status other than 0 must stand on the page as `echo $?`."""
    (told,) = blocks("<!-- on: this node -->\n```console\n$ (exit 2)\n$ echo $?\n2\n```\n")
    (untold,) = blocks("<!-- on: this node -->\n```console\n$ (exit 2)\n$ true\n```\n")
    environment = shell_environment(tmp_path)
    assert [entry.output for entry in runs(told, tmp_path, environment)] == [(), ("2",)]
    with pytest.raises(AssertionError, match="exits 2"):
        runs(untold, tmp_path, environment)


def test_quoted_messages_are_ones_that_nodevet_prints(repository: Path) -> None:
    """What stands under "It says" in the troubleshooting page stands in the sources, between its three dots."""
    sources = [
        path.read_text() for folder in ("agent", "checks", "exporters") for path in repository.glob(f"{folder}/**/*.py")
    ]
    spoken = re.sub(r"\"\s*f?\"|\{by\}", "", " ".join(" ".join(sources).split()))
    page = (repository / "docs" / "how-to" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page.replace("| Finding | Do |", "", 1), re.M)
    messages = [message for message in quoted if " " in message]
    parts = [part.strip() for message in messages for part in message.split("...") if part.strip()]
    assert len(messages) >= 10
    assert [part for part in parts if part not in spoken] == []
