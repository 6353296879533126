"""What a burn-in says where its load or its disk fails: table, JSON, file, history and exit code tell one verdict."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.ended import ended
from fakes.host_tree import server, write_tree
from fakes.privileges import NO_ROOT, needs_root
from fakes.small_disk import fill, printing_nowhere

from nodevet.agent.cli import main
from nodevet.agent.commands import burn_in, check, history, report
from nodevet.agent.config.load import load_configuration
from nodevet.agent.load import alone
from nodevet.agent.load.history import found_alone
from nodevet.agent.load.output import OutputFile
from nodevet.agent.load.run import Spawn
from nodevet.agent.load.wrong import FOUND_AGAIN_SECONDS
from nodevet.agent.once.run import look
from nodevet.agent.slurm.memory import MEMORY_NAME, Kept, pack, save_memory
from nodevet.agent.store.opening import DATABASE_NAME, open_store, read_store
from nodevet.checks.burnin.launch import Launch, burn_command
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError, StoreError, UsageError
from nodevet.checks.core.model import Device, Metric, Result, ResultState, Snapshot
from nodevet.checks.engine.registry import installed
from nodevet.checks.system.files import foreign_link
from nodevet.checks.system.lock import acquire_node_lock
from nodevet.exporters.report.document import read_document
from nodevet.exporters.report.render import render_file
from nodevet.exporters.slurm.rules import WriterMemory
from nodevet.exporters.statefile import writer as statefile

PROGRAM = Path(__file__).with_name("fakes") / "scripted_load.py"
Patch = pytest.MonkeyPatch
HOST_ONLY = '[agent.backends]\nenabled = ["host"]\n[kernel_log]\nenabled = false\n'


class BurnIn:
    """Runs the command in this process, without an agent, over children that do as they are told."""

    def __init__(self, folder: Path) -> None:
        """Keep all its files below *folder*."""
        self._places = []
        for name in ("state-dir", "runtime-dir"):
            (folder / name).mkdir(mode=0o700)
            self._places += [f"--{name}", str(folder / name)]
        (folder / "nodevet.toml").write_text(HOST_ONLY)
        self._places += ["--config", str(folder / "nodevet.toml")]

    def __call__(self, script: Mapping[str, str], *words: str) -> int:
        """Run each format of *script* by name and return the exit code."""
        return burn_in.run(self._parsed(burn_in.configure, *_named(script), *words), _scripted(script))

    def as_command(self, script: Mapping[str, str], monkeypatch: Patch) -> int:
        """Do the same as the installed command does, and return the exit code that it ends with."""
        monkeypatch.setattr(burn_in, "run", partial(burn_in.run, spawn=_scripted(script)))
        return main(["burn-in", *_named(script), *self._places])

    def history(self) -> int:
        """Show the history."""
        return history.run(self._parsed(history.configure))

    def check(self, *names: str) -> int:
        """Look at the node, by the checks of *names* alone where some are given."""
        return check.run(self._parsed(check.configure, *names))

    def _parsed(self, configure: Callable[[argparse.ArgumentParser], None], *words: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        configure(parser)
        return parser.parse_args([*words, *self._places])


def _named(script: Mapping[str, str]) -> list[str]:
    return [word for dtype in script for word in ("--dtype", dtype)]


def _scripted(script: Mapping[str, str]) -> Spawn:
    def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
        return Launch((sys.executable, "-I", str(PROGRAM), json.dumps(dict(script))), dict(environment))

    return spawn


@pytest.fixture
def run(tmp_path: Path) -> BurnIn:
    """A burn-in in directories of its own."""
    return BurnIn(tmp_path)


@pytest.mark.parametrize(
    ("script", "code", "state"),
    [
        ({"fp32": "finish", "bf16": "finish"}, 0, "complete"),
        ({"fp32": "finish", "bf16": "no_format", "int8": "die"}, 3, "incomplete"),
        ({"fp32": "wrong:kill", "bf16": "finish"}, 2, "wrong"),
    ],
)
def test_every_surface_of_a_load_tells_what_is_proved(
    run: BurnIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: dict[str, str], code: int, state: str
) -> None:
    """Exit code, document, report and history agree: green is what was verified to its end, and nothing else."""
    file = tmp_path / "burn-in.json"
    assert run(script, "--output", str(file), "--json") == code
    document = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == document
    verdict = {0: "ok", 2: "failed", 3: "unknown"}[code]
    assert (document["verdict"], document["completeness"]["state"]) == (verdict, state)
    assert {entry["dtype"] for entry in document["results"]} == set(script)
    assert f'id="verdict">{verdict}</p>' in render_file(file.read_bytes())

    assert run.history() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2:4] for line in lines if " gemm " in line and "burnin." not in line] == [[state, "gemm"]]
    assert any("burnin.mismatch" in line for line in lines) is (state == "wrong")


def test_whoever_asks_for_the_check_is_told_what_the_load_did_not_prove(
    run: BurnIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nodevet check burn-in` is asked for the load. The node as a whole is as it was: to be stopped is no fault."""
    assert run({"fp32": "finish", "bf16": "no_format", "int8": "die"}) == 3
    capsys.readouterr()
    assert run.check("burn-in") == 3
    assert "incomplete: 2 of 3 planned formats are not verified" in capsys.readouterr().out.splitlines()[0]
    assert run({"int8": "long", "fp32": "finish"}) == 0
    assert run.check("burn-in") == 0


def test_a_wrong_result_that_no_agent_saw_still_counts_at_the_next_look(
    run: BurnIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-alone run leaves its findings: the next one does not begin with a clean sheet."""
    assert run({"bf16": "wrong:die"}) == 2
    assert run({"fp32": "finish"}) == 2
    assert "3 of 120 GEMMs are wrong" in capsys.readouterr().out


def test_a_retest_ends_what_stood_beside_the_wrong_result_in_its_own_document(
    run: BurnIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """A load died, the next one was wrong: document, exit code and the next look agree on what the re-test ended."""
    assert run({"bf16": "die"}) == 3
    assert run({"bf16": "warm:wrong:finish"}) == 2
    capsys.readouterr()
    code = run({"bf16": "long"}, "--json")
    document = json.loads(capsys.readouterr().out)
    found = {(finding["code"], finding["state"]) for finding in document["findings"] if finding["state"]}
    assert not found & {("burnin.died", "open"), ("burnin.mismatch", "open")}
    assert (code, document["verdict"]) == (0, "ok")
    assert run.check() == 0


def test_processors_alone_make_no_node_green_whose_accelerators_nobody_reads(
    run: BurnIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backend of the vendor is switched off: the load proves the processors, and the node stays unknown."""
    root = write_tree(tmp_path / "root", server())
    (tmp_path / "nodevet.toml").write_text(f'[agent]\nroot = "{root}"\n{HOST_ONLY.removeprefix("[agent]")}')
    assert run({"fp32": "finish"}, "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["completeness"]["state"] == "complete"
    assert "not read: 0000:" in document["reason"]


def test_a_full_disk_costs_the_file_and_not_the_verdict(
    run: BurnIn, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed, the exit code is the verdict's, what cannot be written is told, the old file is whole."""
    file = small_disk / "burn-in.json"
    file.write_text("as it was")
    fill(small_disk)
    assert run({"fp32": "wrong:finish"}, "--output", str(file)) == 2
    printed = capsys.readouterr()
    assert "fp32" in printed.out and "failed" in printed.out
    assert "cannot be written: No space left on device" in printed.err
    assert file.read_text() == "as it was"


@pytest.mark.parametrize(
    ("script", "code"),
    [({"fp32": "finish"}, 3), ({"fp32": "finish", "int8": "die"}, 3), ({"fp32": "wrong:finish"}, 2)],
)
def test_a_load_of_which_nothing_can_be_told_keeps_its_exit_code(
    run: BurnIn, monkeypatch: Patch, script: dict[str, str], code: int
) -> None:
    """`nodevet burn-in >log 2>&1` on a full disk, or a terminal that is gone: before, 1, which is ``degraded``."""
    with printing_nowhere(monkeypatch):
        ended = run.as_command(script, monkeypatch)
    assert ended == code


@pytest.mark.parametrize("script", [{"fp32": "wrong:finish"}, {"fp32": "finish", "int8": "no_torch"}])
def test_a_full_disk_keeps_no_older_document(run: BurnIn, small_disk: Path, script: dict[str, str]) -> None:
    """Whoever renders the file after a load that proved less must not find the green one of an earlier run."""
    file = small_disk / "burn-in.json"
    assert run({"fp32": "finish"}, "--output", str(file)) == 0
    assert read_document(file.read_bytes()).verdict == "ok"
    fill(small_disk)
    assert run(script, "--output", str(file)) > 1
    assert not file.exists() or read_document(file.read_bytes()).verdict != "ok"


def test_what_gives_way_to_a_document_is_an_older_one_alone(small_disk: Path) -> None:
    """It is told where nothing takes its place; what this run has written stays, and so does any other file."""
    said: list[str] = []
    older, foreign = small_disk / "older.json", small_disk / "foreign"
    older.write_text('{"schema":"nodevet.burn-in/1","verdict":"ok"}')
    foreign.write_text("as it was")
    empty = fill(small_disk)
    output = OutputFile(str(older), said.append)
    assert not output.write(b"x" * 10_000)
    assert not older.exists()
    assert "No space left on device, and an older document there was removed" in said[-1]
    assert not OutputFile(str(foreign), said.append).write(b"x" * 10_000)
    assert foreign.read_text() == "as it was"
    empty()
    own = b'{"schema":"nodevet.burn-in/1","verdict":"unknown"}'
    assert output.write(own)
    fill(small_disk)
    assert not output.write(b"x" * 10_000)
    assert older.read_bytes() == own


def test_a_state_directory_that_cannot_be_written_is_told(
    run: BurnIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict stands, and one line says that the history was not written."""
    (tmp_path / "state-dir").rmdir()
    (tmp_path / "state-dir").write_text("a file")
    assert run({"fp32": "finish"}) == 0
    assert "the history was not written" in capsys.readouterr().err


def test_what_is_known_is_in_the_file_while_the_load_goes_on(run: BurnIn, tmp_path: Path) -> None:
    """After each format the file is a document of its own, unknown until the load has come to its end."""
    file, first, second = tmp_path / "burn-in.json", tmp_path / "first.json", tmp_path / "second.json"
    file.write_text("an older run, which was ok")
    script = {"fp32": f"copy:{file}:{first}:unproven", "bf16": f"copy:{file}:{second}:verified"}
    assert run(script, "--output", str(file)) == 0
    for copy, standings in ((first, ["unproven", "unproven"]), (second, ["verified", "unproven"])):
        meanwhile = json.loads(copy.read_text())
        assert (meanwhile["verdict"], meanwhile["completeness"]["state"]) == ("unknown", "incomplete")
        assert [entry["standing"] for entry in meanwhile["completeness"]["accounts"]] == standings
    assert read_document(file.read_bytes()).verdict == "ok"
    assert sorted(path.name for path in tmp_path.glob("*burn-in.json*")) == ["burn-in.json"]


@pytest.mark.parametrize("kind", ["missing", "folder", "read-only"])
def test_a_file_that_cannot_be_written_is_refused_before_the_load(tmp_path: Path, kind: str) -> None:
    """One line names the file and why; exit code 64, and no device was touched."""
    name = {"missing": tmp_path / "none" / "x.json", "folder": tmp_path, "read-only": Path("/proc/version")}[kind]
    assert main(["burn-in", "--plan", "probe", "--output", str(name), "--runtime-dir", str(tmp_path / "run")]) == 64
    assert not (tmp_path / "run").exists()


def test_a_link_is_followed_and_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    """A link to a file keeps leading there; a pipe gets one document, the last."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    assert OutputFile(str(link), print).write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    output = OutputFile(str(pipe), print)
    assert output.write(b"so far")
    assert output.write(b"told", last=True)
    assert os.read(reader, 16) == b"told"
    os.close(reader)


def test_a_pipe_that_nobody_reads_is_told_and_holds_nothing_up(tmp_path: Path) -> None:
    """Neither a reader that never comes nor one that sleeps keeps the load, a job that waits for it, or Ctrl-C."""
    pipe, said = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    output = OutputFile(str(pipe), said.append, patience_seconds=0.05)
    assert not output.write(b"told", last=True)
    assert "No such device or address" in said[-1]
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert not output.write(b"x" * (1 << 20), last=True)
    assert "its reader does not read" in said[-1]
    os.close(reader)


def test_the_pipe_behind_standard_output_is_written() -> None:
    """Where /dev/stdout leads to: a link to a name that is no file."""
    code = (
        "from nodevet.agent.load.output import OutputFile as To; To('/proc/self/fd/1', print).write(b'told', last=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"told"


def test_what_cannot_be_written_is_told_once_for_each_reason(small_disk: Path) -> None:
    """A disk that stays full for hours is one line; one that is emptied is written again."""
    said: list[str] = []
    output = OutputFile(str(small_disk / "x.json"), said.append)
    empty = fill(small_disk)
    assert [output.write(b"x" * 10_000) for _ in range(3)] == [False] * 3
    empty()
    assert output.write(b"x")
    assert len(said) == 1


def burn_in_writes(name: Path) -> None:
    """Write there as `nodevet burn-in --output` does."""
    assert OutputFile(str(name), print).write(b"document", last=True)


def report_writes(name: Path) -> None:
    """Write there as `nodevet report render --output` does."""
    report.write_page(name, b"page")


@needs_root
def test_a_user_follows_the_links_that_the_kernel_lets_a_process_follow(tmp_path: Path, monkeypatch: Patch) -> None:
    """A colleague's link in a project's folder leads on; one in a folder such as /tmp does not."""
    link = tmp_path / "link"
    link.symlink_to("target")
    os.chown(link, 4242, 4242, follow_symlinks=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    assert foreign_link(link) is None
    tmp_path.chmod(0o1777)
    assert foreign_link(link) == link
    os.chown(tmp_path, 4242, 4242)
    assert foreign_link(link) is None


NO_PLACES = {
    "no device": ("/dev/nodevet-no-such-device", "no such device; a plain file in /dev would be lost"),
    "a device": ("/dev/urandom", "it is a device and not a terminal"),
    "links in a circle": ("{folder}/loop", "Too many levels of symbolic links"),
    "a socket": ("{folder}/socket", "it is a socket"),
    "a long name": ("{folder}/" + "x" * 252, "File name too long"),
    "no folder": ("{folder}/none/x.json", "No such file or directory"),
    "below a file": ("{folder}/file/x.json", "Not a directory"),
    "a link to nowhere": ("{folder}/to-nowhere", "No such file or directory"),
}


@pytest.mark.parametrize("place", NO_PLACES)
def test_what_is_no_place_for_a_document_is_refused_with_its_reason(tmp_path: Path, place: str) -> None:
    """Before the load, in words; nothing is left there, above all no plain file among the devices."""
    name, why = NO_PLACES[place]
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to-nowhere").symlink_to(tmp_path / "none" / "x.json")
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(UsageError, match=re.escape(why)):
            OutputFile(name.format(folder=tmp_path), print)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not Path("/dev/nodevet-no-such-device").exists()


@needs_root
@pytest.mark.parametrize("where", ["last", "folder", "behind our own"])
@pytest.mark.parametrize("write", [burn_in_writes, report_writes])
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, where: str, write: Callable[[Path], object]) -> None:
    """Root writes `--output /tmp/x.json`: what a user's link of that name leads to keeps its content."""
    folder, target = tmp_path / "folder", tmp_path / "kept" / "file"
    folder.mkdir()
    target.parent.mkdir()
    target.write_text("kept")
    foreign = folder / "foreign"
    foreign.symlink_to(target.parent if where == "folder" else target)
    os.chown(foreign, 4242, 4242, follow_symlinks=False)
    (tmp_path / "own").symlink_to("folder/../folder/foreign")
    name = {"last": foreign, "folder": foreign / "file", "behind our own": tmp_path / "own"}[where]
    with pytest.raises((UsageError, OSError), match=f"{re.escape(str(foreign))} is a symbolic link of another user"):
        write(name)
    assert target.read_text() == "kept"
    os.chown(foreign, 0, 0, follow_symlinks=False)
    write(name)
    assert target.read_text() != "kept"


@needs_root
def test_a_disk_is_no_file_to_write_a_document_onto(tmp_path: Path) -> None:
    """Root may write there, and would destroy what is on it."""
    disk = tmp_path / "disk"
    try:
        os.mknod(disk, stat.S_IFBLK | 0o600, os.makedev(7, 255))
    except PermissionError:
        pytest.skip(NO_ROOT)
    with pytest.raises(UsageError, match="it is a disk"):
        OutputFile(str(disk), print)


def test_a_program_that_runs_is_not_replaced_by_a_document(tmp_path: Path) -> None:
    """What the system says of the file itself is told before the load, not after it."""
    program = tmp_path / "sleep"
    shutil.copy("/bin/sleep", program)
    with ended(subprocess.Popen([program, "60"])) as running:
        with pytest.raises(UsageError, match="Text file busy"):
            OutputFile(str(program), print)
        running.kill()


@pytest.mark.parametrize("stands", ["a job claims this node", "another load"])
def test_a_load_that_is_refused_leaves_no_older_document(run: BurnIn, tmp_path: Path, stands: str) -> None:
    """Whoever renders the file after a load that never began sees that nothing was verified."""
    file = tmp_path / "burn-in.json"
    assert run({"fp32": "finish"}, "--output", str(file)) == 0
    assert read_document(file.read_bytes()).verdict == "ok"
    runtime = tmp_path / "runtime-dir"
    with ExitStack() as held:
        if stands == "another load":
            held.enter_context(acquire_node_lock(runtime, "nodevet burn-in"))
        else:
            (runtime / "claims" / "4711").touch()
        with pytest.raises(BusyError):
            run({"fp32": "finish"}, "--output", str(file))
    document = json.loads(file.read_text())
    assert (document["verdict"], document["completeness"]["state"]) == ("unknown", "incomplete")
    assert {"a job claims this node": stands, "another load": "held by nodevet burn-in"}[stands] in document["reason"]


@pytest.mark.parametrize("seconds", ["0", "-0.0", "-1", "nan", "inf", "1.7e308", "2678401"])
def test_a_duration_that_no_load_has_is_refused(run: BurnIn, seconds: str) -> None:
    """Before, the largest ones ended the child by an error of its own, which stayed on the node as a finding."""
    with pytest.raises(UsageError, match=r"must be a number above 0 and at most 2678400 \(31 days\)"):
        run({"fp32": "finish"}, "--seconds", seconds)


def test_a_format_that_is_named_twice_is_run_once(run: BurnIn, capsys: pytest.CaptureFixture[str]) -> None:
    """Two words are no two proofs."""
    assert run({"fp32": "finish"}, "--dtype", "fp32", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    accounts = document["completeness"]["accounts"]
    assert len({(entry["device"], entry["dtype"]) for entry in accounts}) == len(accounts)


def test_an_output_is_a_usage_error_in_the_words_of_the_system(tmp_path: Path) -> None:
    """The reason is the system's."""
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        OutputFile(str(tmp_path), print)


def test_nobody_takes_the_node_between_a_load_and_its_verdict(run: BurnIn, tmp_path: Path, monkeypatch: Patch) -> None:
    """An agent that systemd starts again and again, or a check by cron: before, its lock cost the results."""
    looks = list[bool]()

    def looked(*arguments: Any, **options: Any) -> Snapshot:
        try:
            acquire_node_lock(tmp_path / "runtime-dir", "nodevet check").release()
        except BusyError:
            looks.append(False)
        else:
            looks.append(True)
        return look(*arguments, **options)

    monkeypatch.setattr(burn_in, "look", looked)
    assert run({"fp32": "wrong:finish"}) == 2
    assert looks == [False, False]  # before the load, and behind it


def test_results_that_nobody_can_judge_are_told_and_kept(
    run: BurnIn, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever keeps the node from being looked at after a load, the load's own verdict stands, and history has it."""
    file, looks = tmp_path / "burn-in.json", list[str]()

    def looked(*arguments: Any, **options: Any) -> Snapshot:
        looks.append("look")
        if len(looks) == 2:
            raise StoreError("the state directory is gone")
        return look(*arguments, **options)

    monkeypatch.setattr(burn_in, "look", looked)
    assert run({"fp32": "finish", "bf16": "wrong:finish"}, "--output", str(file)) == 2
    printed = capsys.readouterr()
    assert "the node was not judged after the burn-in: the state directory is gone; its results are in" in printed.err
    assert read_document(file.read_bytes()).verdict == "failed"
    assert run({"fp32": "finish"}) == 2
    assert run.history() == 0
    assert "wrong results: cpu-0 bf16 (3 wrong)" in capsys.readouterr().out


def test_why_results_are_not_in_the_history_is_told(
    run: BurnIn, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can judge them and the state directory takes nothing, only the document has them."""
    file, looks = tmp_path / "burn-in.json", list[str]()

    def looked(*arguments: Any, **options: Any) -> Snapshot:
        looks.append("look")
        if len(looks) == 2:
            shutil.rmtree(tmp_path / "state-dir")
            (tmp_path / "state-dir").write_text("no folder")
            raise StoreError("the state directory is gone")
        return look(*arguments, **options)

    monkeypatch.setattr(burn_in, "look", looked)
    assert run({"fp32": "finish"}, "--output", str(file)) == 3
    said = capsys.readouterr().err
    assert f"its results are only in {file}, because the history cannot be written: {tmp_path}/state-dir" in said


def test_what_the_store_knows_later_than_the_file_stands_in_the_state_of_a_load(run: BurnIn, tmp_path: Path) -> None:
    """The runtime directory was full when the permit was given: a load without an agent must not open the gate."""
    with (tmp_path / "nodevet.toml").open("a") as file:
        file.write('[slurm]\nwriter = "drain"\n')
    now = SystemClock().instant()
    settings = load_configuration(tmp_path / "nodevet.toml", installed(), environment={})
    places = {"state_dir": str(tmp_path / "state-dir"), "runtime_dir": str(tmp_path / "runtime-dir")}
    settings = msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, **places))
    load = burn_in.Load(argparse.Namespace(), settings, None, burn_command, 1.0)
    save_memory(tmp_path / "runtime-dir" / MEMORY_NAME, Kept(now.boot_id, WriterMemory(), edition=1))
    assert not permit_before(load)
    store = open_store(tmp_path / "state-dir" / DATABASE_NAME).store
    store.save_round((), {"slurm": pack(Kept(now.boot_id, WriterMemory(permit=now.boot_id), edition=2))}, time=now)
    store.close()
    assert permit_before(load)


def permit_before(load: burn_in.Load) -> bool:
    """Return whether *load* tells of a permit."""
    writer = burn_in._writer_before(load)
    assert writer is not None
    return writer.permit.held


def test_a_runtime_directory_that_fails_while_a_load_runs_costs_no_result(
    run: BurnIn, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full, or removed: the load goes on, and is judged."""
    write = statefile.write_state

    def full(path: Path, snapshot: Snapshot, *, ttl_seconds: float, lead_seconds: float) -> None:
        if not snapshot.agent.probing:
            raise statefile.StateFileError(f"{path}: no space left")
        write(path, snapshot, ttl_seconds=ttl_seconds, lead_seconds=lead_seconds)

    monkeypatch.setattr(alone, "write_state", full)
    file = tmp_path / "burn-in.json"
    assert run({"fp32": "wrong:finish"}, "--output", str(file)) == 2
    printed = capsys.readouterr()
    assert printed.err.count("no space left") == 1
    assert "failed" in printed.out
    assert read_document(file.read_bytes()).verdict == "failed"


def test_a_signal_behind_the_verdict_changes_nothing(run: BurnIn, tmp_path: Path, monkeypatch: Patch) -> None:
    """Neither the document nor the exit code."""
    alone_ended = burn_in._alone

    def interrupted(load: burn_in.Load) -> None:
        alone_ended(load)
        raise KeyboardInterrupt

    monkeypatch.setattr(burn_in, "_alone", interrupted)
    file, codes = tmp_path / "burn-in.json", []
    with contextlib.suppress(KeyboardInterrupt):
        codes.append(run({"fp32": "wrong:finish"}, "--output", str(file)))
    assert codes == [2]
    assert read_document(file.read_bytes()).verdict == "failed"


def test_a_wrong_result_that_cannot_be_kept_is_kept_when_it_can(tmp_path: Path) -> None:
    """A disk that is full when the wrong product is found; one line tells of it, and it is tried again."""
    said, moment, folder = list[str](), [0.0], tmp_path / "state-dir"
    folder.write_text("no folder")
    places = {"agent.state_dir": str(folder), "agent.runtime_dir": str(tmp_path)}
    settings = load_configuration(None, installed(), overrides=places, environment={})
    known = Result(
        workload="gemm",
        devices=("cpu-0",),
        state=ResultState.DIED,
        started=SystemClock().instant(),
        ended=SystemClock().instant(),
        dtype="fp32",
        metrics=(Metric("mismatches", 3, "count"),),
    )
    found = found_alone(settings, lambda result: result, said.append, clock=lambda: moment[0]).found
    found((known,))
    folder.unlink()
    found((known,))
    assert not folder.exists(), "it is not tried in each turn of the loop"
    for _ in range(2):
        moment[0] += FOUND_AGAIN_SECONDS
        found((known,))
    assert len(said) == 1
    store = read_store(folder / DATABASE_NAME)
    try:
        assert [result.metric("mismatches") for result in store.results()] == [3]
        assert "results" in store.load_memory()
    finally:
        store.close()


def test_results_that_a_look_adds_are_judged_by_the_next_one(run: BurnIn, tmp_path: Path) -> None:
    """Such as that a board which came late was not loaded; they are in the memory that is kept."""
    places = {"agent.state_dir": str(tmp_path / "state-dir"), "agent.runtime_dir": str(tmp_path / "runtime-dir")}
    settings = load_configuration(tmp_path / "nodevet.toml", installed(), overrides=places, environment={})
    now = SystemClock().instant()
    late = Result(workload="gemm", devices=("cpu-0",), state=ResultState.REFUSED, started=now, ended=now, dtype="fp32")
    kept: list[bytes] = []
    snapshot = look(settings, keep=lambda _changes, memory: kept.append(memory["results"]), also=lambda _seen: (late,))
    assert snapshot.results == (late,)
    assert msgspec.msgpack.decode(kept[0], type=tuple[Result, ...]) == (late,)
