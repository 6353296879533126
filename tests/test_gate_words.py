"""Every word of a state file and of gate.conf, changed: what is not understood closes nothing, in every shell."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.gate_words import NO_VERDICT, said_by_python, said_by_shell
from fakes.privileges import needs_root
from fakes.slurm_gate import GATE_FILES, Gate, Line, accelerator, shells
from fakes.slurm_steps import SteppedGate

from nodevet.exporters.statefile.reader import AGENT_STATES, KINDS, REACHES, STATES

DISK = Line("disk", "-", "-", "ok", "soft", "none", "nvme0", "healthy")
FAULTY = (accelerator(0, "failed", "hard"), accelerator(1), accelerator(2), DISK)
HEALTHY = (accelerator(0), accelerator(1), accelerator(2), DISK)

FREE = {"reason", "node_reason", "name", "action", "id", "pci"}
"""Columns of free text, or of words that no prolog decides by."""

COLUMNS = (
    ("verdict", "number", "number", "node_reason"),
    ("format", "boot", "origin", "agent", "load", "reach", "action", "number", "name"),
    *(("kind", "pci", "number", "verdict", "reach", "action", "id", "reason"),) * 5,
    ("end", "number"),
)
WRONG_WORDS = ("bogus", "OK", "Hard", "hardly", "failed,", "-1", "008", "'hard'", "*", "$(reboot)", "9" * 12, "\u0663")


@pytest.fixture(params=shells(), ids=lambda shell: shell[0])
def gate(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> SteppedGate:
    """The scripts beside an empty runtime directory, on a clock of their own: no file expires while others are read."""
    return SteppedGate(repository, tmp_path, request.param)


def saved(folder: Path, texts: list[str]) -> list[Path]:
    """Write each of *texts* to a file of its own in *folder*."""
    folder.mkdir()
    paths = [folder / str(number) for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def changed_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield the column and the text of a file in which one word is another, is doubled, or is missing."""
    lines = text.splitlines()
    for row, columns in enumerate(COLUMNS):
        words = lines[row].split(" ", len(columns) - 1)
        for place, column in enumerate(columns):
            for wrong in (*WRONG_WORDS, f"{words[place]} {words[place]}", None):
                line = " ".join([*words[:place], *([] if wrong is None else [wrong]), *words[place + 1 :]])
                yield (
                    "missing or doubled" if wrong is None or " " in wrong else column,
                    "\n".join([*lines[:row], line, *lines[row + 1 :], ""]),
                )


@pytest.mark.parametrize("lines", [FAULTY, HEALTHY], ids=["faulty", "healthy"])
def test_a_word_that_is_not_understood_is_no_verdict(gate: Gate, tmp_path: Path, lines: tuple[Line, ...]) -> None:
    """Every word of every line, each replaced by every wrong one: shell and Python agree that nothing is known."""
    changed = list(changed_words(gate.text(*lines)))
    assert len(changed) > 700
    said = said_by_shell(gate.shell, gate.scripts, saved(tmp_path / "files", [text for _, text in changed]))
    for (column, text), words in zip(changed, said, strict=True):
        assert words == said_by_python(text, gate.uptime_seconds()), text
        if column not in FREE and column != "missing or doubled":
            assert words == NO_VERDICT, text


def test_every_word_that_is_known_is_understood_alike(gate: Gate, tmp_path: Path) -> None:
    """All words of the agent, and all pairs of verdict and what it rests on, for the node, a GPU and a disk."""
    texts = [gate.text(*HEALTHY, agent=agent, load=load) for agent in AGENT_STATES for load in ("idle", "probing")]
    for state in STATES:
        for reach in REACHES:
            node = Line(verdict=state, hard=reach)
            gpus = [Line(kind, "-", "0", state, reach, "none", "x", "words") for kind in KINDS]
            texts += [gate.text(node, *HEALTHY), *(gate.text(gpu, *HEALTHY[1:]) for gpu in gpus)]
            texts.append(gate.text(*HEALTHY, hard=reach).replace("ok ", f"{state} ", 1))
            texts.append(gate.text(accelerator(7, state, reach), *HEALTHY))
            texts.append(gate.text(Line("accelerator", "-", "-", state, reach, "none", "x", "words"), *HEALTHY))
    said = said_by_shell(gate.shell, gate.scripts, saved(tmp_path / "files", texts))
    assert said == [said_by_python(text, gate.uptime_seconds()) for text in texts]
    assert {word for words in said for word in words.split()} >= {"fault", "refusal", "unpermitted", "doubt", "drained"}


def test_files_that_are_spoiled_at_random_are_understood_alike(gate: Gate, tmp_path: Path) -> None:
    """Letters, words and lines removed, doubled and exchanged, as no writer would: one answer, never a crash."""
    dice = random.Random(2026)  # noqa: S311
    texts = [spoiled(gate.text(*dice.choice((FAULTY, HEALTHY))), dice) for _ in range(600)]
    said = said_by_shell(gate.shell, gate.scripts, saved(tmp_path / "files", texts))
    understood = [said_by_python(text, gate.uptime_seconds()) for text in texts]
    different = [text for text, words, meant in zip(texts, said, understood, strict=True) if words != meant]
    assert different == []
    assert 0.2 < said.count(NO_VERDICT) / len(said) < 0.98


def spoiled(text: str, dice: random.Random) -> str:
    """Return *text* after one to three accidents."""
    for _ in range(dice.randint(1, 3)):
        lines = text.split("\n")
        row = dice.randrange(len(lines))
        place = dice.randrange(len(text))
        match dice.randrange(7):
            case 0:
                text = text[:place] + text[place + 1 :]
            case 1:
                text = text[:place] + dice.choice(" \t\n0-\\'\"$*é") + text[place:]
            case 2:
                text = "\n".join([*lines[:row], *lines[row + 1 :]])
            case 3:
                text = "\n".join([*lines[:row], lines[row], *lines[row:]])
            case 4:
                old, new = dice.sample(("ok", "failed", "unknown", "hard", "soft", "idle", "refused"), 2)
                text = text.replace(old, new)
            case 5:
                words = lines[row].split(" ")
                dice.shuffle(words)
                text = "\n".join([*lines[:row], " ".join(words), *lines[row + 1 :]])
            case _:
                text = text[:place] + text[place:].replace("  ", " ")
        if not text:
            return "\n"
    return text


@pytest.mark.parametrize(
    "line",
    [
        "mode=Observe",
        "mode=Gate",
        "mode = gate",
        "mode = observe",
        "mode=",
        "mode=gate ; reboot",
        "mode=gate # closes",
        "mode=gate\r",
        "MODE=gate",
        "Mode=gate",
        "mode:gate",
        "mode gate",
        'mode="gate"',
        "gate=mode",
        "export mode=gate",
        "mode=drain",
    ],
)
@pytest.mark.parametrize("place", ["alone", "before", "after"])
def test_a_mode_that_is_not_understood_is_observe(gate: Gate, line: str, place: str) -> None:
    """Wherever it stands, also beside one that is understood: the job starts, and the log names the line."""
    lines = {"alone": [line], "before": [line, "mode=gate"], "after": ["mode=gate", line]}[place]
    (gate.scripts / "gate.conf").write_text("\n".join([f"runtime_dir={gate.runtime}", *lines, ""]))
    gate.write(*FAULTY, never=True)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (0, "observed")
    assert "gate.conf: not understood: " in decided.words
    assert len(gate.lines()) == 1


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("mode=observe", "observed"),
        ("mode = observe", "observed"),
        ("Mode=Observe\r", "observed"),
        ("on_driver_refusal=pass", "observed"),
        ("on_stale=pass", "observed"),
        ("gpus=all", "closed"),
        ("drain_wait_seconds=1", "closed"),
        ("observe, as in the mode of gate.conf = observe", "closed"),
    ],
)
def test_a_setting_below_the_end_of_settings_closes_nothing(
    gate: Gate, repository: Path, line: str, decision: str
) -> None:
    """As ``echo mode=observe >>gate.conf`` writes it, to stop a gate: nobody reads it there. Before, it closed."""
    shipped = (repository / "deploy/slurm/gate.conf").read_text().replace("mode=observe", "mode=gate", 1)
    file = gate.scripts / "gate.conf"
    file.write_text(shipped.replace("/run/nodevet", str(gate.runtime), 1))
    gate.write(*FAULTY, never=True)
    decided = gate.prolog("0")
    assert (decided.decision, "not understood" in decided.words) == ("closed", False)
    file.write_text(f"{file.read_text()}{line}\n")
    decided = gate.prolog("0")
    assert decided.decision == decision
    assert ("not understood" in decided.words) is not line.startswith("observe")
    gate.write(*HEALTHY)
    assert gate.prolog("0").decision == "open"


def test_without_gate_conf_or_a_mode_nothing_closes(gate: Gate) -> None:
    """The prolog begins by observing."""
    gate.write(*FAULTY, never=True)
    (gate.scripts / "gate.conf").write_text(f"runtime_dir={gate.runtime}\n")
    assert gate.prolog("0").decision == "observed"
    (gate.scripts / "gate.conf").unlink()
    assert gate.prolog("0").code == 0


@pytest.mark.parametrize(
    ("name", "line", "decision"),
    [
        ("on_stale", "on_stale=Fail", "no_verdict_open"),
        ("on_stale", "on_stale = fail", "no_verdict_open"),
        ("on_stale", "on_stale=fail", "no_verdict_closed"),
        ("on_driver_refusal", "on_driver_refusal=Pass", "refused_open"),
        ("on_driver_refusal", "on_driver_refusal = fail", "refused_open"),
        ("on_driver_refusal", "on_driver_refusal=fail", "refused_closed"),
        ("on_driver_refusal", "on_driver_refusal=pass", "refused_open"),
        ("on_driver_refusal", "# nothing", "refused_closed"),
    ],
)
def test_a_choice_that_is_not_understood_closes_nothing(gate: Gate, name: str, line: str, decision: str) -> None:
    """It is taken as `pass`, whatever stood above it."""
    with (gate.scripts / "gate.conf").open("a") as settings:
        settings.write(f"{'' if line.startswith('#') else name + '=fail'}\n{line}\n")
    if name == "on_driver_refusal":
        gate.write(Line(verdict="unknown", hard="refused", reason="the driver refuses every GPU"), *HEALTHY)
    assert gate.prolog("0").decision == decision


@pytest.mark.parametrize("seconds", ["08", "0x5", "1e3", "-1", "5 ", "99999999999999999999"])
def test_a_number_that_shells_read_differently_is_a_slip(gate: Gate, seconds: str) -> None:
    """Arithmetic would take 08 for octal, and end the script with an error that drains the node."""
    gate.set(drain_wait_seconds=seconds, probe_wait_seconds=seconds)
    gate.write(*FAULTY, never=True, expires_in=-1)
    assert gate.prolog("0").decision == "closed"


@pytest.mark.parametrize(
    "line",
    [
        "gpus=0,1,2,3",
        "gpus=0, 1, 2, 3",
        "gpus=0-3",
        "gpus=00 01 02 03",
        "gpus=0 1 2 3 # ours",
        "runtime_dir=/run/n # ours",
    ],
)
def test_numbers_and_folders_that_are_not_understood_close_nothing_and_hide_nothing(gate: Gate, line: str) -> None:
    """With commas no GPU had a line: healthy ones closed every gate without a permit, broken ones got jobs."""
    with (gate.scripts / "gate.conf").open("a") as settings:
        settings.write(f"on_stale=fail\n{line}\n")
    gate.write(*HEALTHY)
    healthy = gate.prolog("0")
    assert (healthy.decision, f"not understood: {line}" in healthy.words) == ("open", True)
    gate.write(*FAULTY, never=True)
    assert gate.prolog("0").decision == "closed"


def test_a_gate_conf_that_is_being_written_closes_nothing_without_a_permit(gate: Gate) -> None:
    """An editor that writes in place leaves the beginning of the file for a moment, while jobs start."""
    settings = ("mode=gate", "on_stale=pass", "on_driver_refusal=pass", "gpus=3 2 1 0", "drain_wait_seconds=0")
    text = "\n".join((f"runtime_dir={gate.runtime}", *settings, "# end of settings", ""))
    for line in (accelerator(0), accelerator(0, "failed", "unpermitted"), accelerator(0, "unknown", "soft")):
        gate.write(line)
        for end in range(0, len(text), 7):
            (gate.scripts / "gate.conf").write_text(text[:end])
            assert gate.prolog("0").code == 0, text[:end]


@pytest.mark.parametrize("name", GATE_FILES)
def test_a_script_that_is_being_copied_drains_nothing(gate: Gate, name: str) -> None:
    """Cut off behind any of its lines, and within one: a healthy job starts all the same."""
    gate.write(*HEALTHY)
    script = gate.scripts / name
    whole = script.read_text()
    ends = [at for at, letter in enumerate(whole) if letter == "\n"]
    step = 2 if gate.shell[0] == "dash" else 11
    guarded = whole.index("EXIT\n") + 5 if name in ("prolog.sh", "epilog.sh") else 0
    for end in ends[::step]:
        for cut in (end + 1, max(end - 7, guarded)):
            script.write_text(whole[:cut])
            assert gate.prolog("0").code == 0, whole[:cut][-200:]
            assert gate.run("epilog.sh", SLURM_JOB_ID="7").returncode == 0, whole[:cut][-200:]


@needs_root
def test_a_prolog_of_another_user_says_that_it_is_not_counted(gate: Gate) -> None:
    """It may neither trust the state nor write the log: its last word goes to slurmd's log, with what to do."""
    gate.write(*FAULTY, never=True)
    for folder in (gate.runtime, *gate.runtime.parents):
        if folder != Path(tempfile.gettempdir()) and folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(0o755)
    program = shutil.which(gate.shell[0]) or gate.shell[0]
    done = subprocess.run(
        [program, *gate.shell[1:], str(gate.scripts / "prolog.sh")],
        env={"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, gate.lines()) == (0, [])
    for words in ("no_verdict_open", "belongs to another user", "must run the prolog as", "not counted"):
        assert words in done.stderr
