"""Lines of the shell on which jobs depend, each broken on purpose in a copy: what the prolog decides must change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from fakes.slurm_gate import Gate, Line, accelerator
from fakes.slurm_steps import SteppedGate

EIGHT = tuple(accelerator(minor) for minor in range(8))
BROKEN = (accelerator(0, "failed", "hard"), *EIGHT[1:])
UNPERMITTED = (accelerator(0, "failed", "unpermitted"), *EIGHT[1:])
REFUSED = (Line(verdict="unknown", hard="refused", reason="the driver refuses every GPU"), *EIGHT)


def resumed(gate: Gate) -> None:
    """A node that the agent believes drained."""
    gate.write(*BROKEN, never=True, agent="drained")


def after_a_wrong_mode(gate: Gate) -> None:
    """A mode that is not understood before one that is."""
    gate.set(mode="Observe")
    gate.set(mode="gate")
    gate.write(*BROKEN, never=True)


def with_a_mode_below_the_end(gate: Gate) -> None:
    """Somebody appended a line to gate.conf, to stop the gate."""
    with (gate.scripts / "gate.conf").open("a") as settings:
        settings.write("\nmode=gate\n# end of settings\nmode=observe\n")
    gate.write(*BROKEN, never=True)


def changed(old: str, new: str) -> Callable[[Gate], object]:
    """Return a way to write a state file with one word changed."""
    return lambda gate: gate.state.write_text(gate.text(*EIGHT).replace(old, new, 1))


def with_setting(lines: tuple[Line, ...], **settings: str) -> Callable[[Gate], object]:
    """Return a way to write *lines* beside *settings*."""

    def lay_out(gate: Gate) -> None:
        gate.set(**settings)
        gate.write(*lines, never=True)

    return lay_out


def beside_slices(gate: Gate) -> None:
    """A board is cut into slices, another one is broken, and SLURM finds them itself."""
    gate.gres.write_text("AutoDetect=nvml\n")
    (gate.runtime.parent / "driver/capabilities/gpu0/mig/gi0").mkdir(parents=True)
    gate.write(*EIGHT[:3], accelerator(3, "failed", "hard"), *EIGHT[4:], never=True)


def numbered_by_device(gate: Gate) -> None:
    """SLURM finds the GPUs without NVML, and the first device node is not the first on the bus."""
    gate.gres.write_text("AutoDetect=nvidia\n")
    gate.write(accelerator(2, pci=0), accelerator(1), accelerator(0, "failed", "hard", pci=2), never=True)


def beside_blanks(gate: Gate) -> None:
    """A line of another node is written with blanks."""
    files = {"n2": "4-7", "n1": "0-3"}
    gate.gres.write_text("".join(f"NodeName = {n} Name=gpu File=/dev/nvidia[{list_}]\n" for n, list_ in files.items()))
    gate.write(*BROKEN, never=True)


def of_two_types(gate: Gate) -> None:
    """slurm.conf names the type of the second line first, so the job's first GPU is /dev/nvidia4."""
    types = (("a100", "0-3"), ("h100", "4-7"))
    gate.gres.write_text("".join(f"Name=gpu Type={kind} File=/dev/nvidia[{list_}]\n" for kind, list_ in types))
    gate.write(*EIGHT[:4], accelerator(4, "failed", "hard"), *EIGHT[5:], never=True)


def typed_in_part(gate: Gate) -> None:
    """Only the second line has a type."""
    gate.gres.write_text("Name=gpu File=/dev/nvidia[0-3]\nName=gpu Type=h100 File=/dev/nvidia[4-7]\n")
    gate.write(*EIGHT[:4], accelerator(4, "failed", "hard"), *EIGHT[5:], never=True)


def behind_a_gone_board(gate: Gate) -> None:
    """A person said that the first board is gone, and slurmd has counted it since its start."""
    gate.gres.write_text("AutoDetect=nvml\n")
    gone = msgspec.structs.replace(accelerator(0, "failed", "observed"), pci="-")
    gate.write(gone, accelerator(1, "failed", "hard"), *EIGHT[2:], never=True)


CASES: dict[str, tuple[Callable[[Gate], object], tuple[int, str]]] = {
    "healthy": (lambda gate: gate.write(*EIGHT), (0, "open")),
    "broken": (lambda gate: gate.write(*BROKEN, never=True), (1, "closed")),
    "unpermitted": (lambda gate: gate.write(*UNPERMITTED, never=True), (0, "unpermitted")),
    "refused": (lambda gate: gate.write(*REFUSED), (1, "refused_closed")),
    "refused, passed": (with_setting(REFUSED, on_driver_refusal="pass"), (0, "refused_open")),
    "refused, not understood": (with_setting(REFUSED, on_driver_refusal="Fail"), (0, "refused_open")),
    "refused, no permit": (
        with_setting((Line(verdict="unknown", hard="unpermitted", reason="refused"), *EIGHT), on_stale="fail"),
        (0, "unpermitted"),
    ),
    "refused, observed": (
        with_setting((Line(verdict="unknown", hard="observed", reason="refused"), *EIGHT), on_stale="fail"),
        (0, "open"),
    ),
    "numbers with commas": (with_setting(BROKEN, gpus="0,1,2,3,4,5,6,7"), (1, "closed")),
    "words behind a folder": (with_setting(BROKEN, runtime_dir="/run/nodevet # ours"), (1, "closed")),
    "resumed": (resumed, (0, "resumed")),
    "of another node": (with_setting((Line(id="node:n2"), *BROKEN)), (0, "unpermitted")),
    "of this node": (with_setting((Line(id="node:n1"), *BROKEN)), (1, "closed")),
    "observed": (with_setting(BROKEN, mode="observe"), (0, "observed")),
    "slices": (beside_slices, (1, "closed")),
    "numbered by device": (numbered_by_device, (1, "closed")),
    "blanks": (beside_blanks, (1, "closed")),
    "two types": (of_two_types, (1, "closed")),
    "a type and none": (typed_in_part, (1, "closed")),
    "behind a gone board": (behind_a_gone_board, (1, "closed")),
    "before a gone board": (behind_a_gone_board, (1, "closed")),
    "mode below the end": (with_a_mode_below_the_end, (0, "observed")),
    "wrong mode first": (after_a_wrong_mode, (0, "observed")),
    "stale": (lambda gate: gate.write(*EIGHT, expires_in=-5), (0, "no_verdict_open")),
    "unknown verdict": (changed("ok ", "fine "), (0, "no_verdict_open")),
    "unknown reach": (changed(" idle soft ", " idle firm "), (0, "no_verdict_open")),
    "unknown agent": (changed(" running ", " walking "), (0, "no_verdict_open")),
    "unknown load": (changed(" idle ", " lazy "), (0, "no_verdict_open")),
    "unknown kind": (changed("accelerator 0000:80", "booster 0000:80"), (0, "no_verdict_open")),
    "more behind the end": (
        lambda gate: gate.state.write_text(gate.text(*EIGHT) + "x\n"),
        (0, "no_verdict_open"),
    ),
}

WANTED = {"behind a gone board": "1"}
"""The GPU of the job, where it is not the first."""

MUTANTS = {
    "whatever begins with a digit numbers GPUs": (
        "gate.sh",
        'is_count "$count" || return 1',
        "true",
    ),
    "a folder has words behind it": (
        "gate.sh",
        "runtime_dir=/*[[:blank:]]*) slip=$setting ;;",
        "never) ;;",
    ),
    "slurmd forgets a board before it is started anew": (
        "gate.sh",
        '"$((place + gone))" ]; do',
        '"$place" ]; do',
    ),
    "a board that is gone keeps its place for ever": (
        "gate.sh",
        'if [ "$pci" = - ]; then gone=$((gone + 1)); else place=$((place + 1)); fi',
        "place=$((place + 1))",
    ),
    "a mode that is not understood keeps the one before it": (
        "gate.sh",
        '[ -z "$unclear_mode" ] || mode=observe\n',
        "\n",
    ),
    "what stands below the end of settings is none": (
        "prolog.sh",
        'read_below_end "$here/gate.conf"',
        ":",
    ),
    "a mode below the end of settings is only told": (
        "gate.sh",
        "| on_stale | on_driver_refusal) mode=observe ;;",
        "| on_stale | on_driver_refusal) ;;",
    ),
    "the shipped default closes": ("prolog.sh", 'if [ "$mode" != gate ]; then', 'if [ "$mode" = no ]; then'),
    "a refusal that is not understood closes": (
        "gate.sh",
        "*[Dd][Rr][Ii][Vv][Ee][Rr]*) on_driver_refusal=pass ;;",
        "*[Dd][Rr][Ii][Vv][Ee][Rr]*) ;;",
    ),
    "a verdict that is not known is none": ("gate.sh", "ok | degraded | failed | unknown) ;;", "*) return 0 ;;"),
    "a reach that is not known is none": (
        "gate.sh",
        "hard | unpermitted | refused | observed | soft) ;;",
        "*) return 0 ;;",
    ),
    "an agent's word that is not known is none": (
        "gate.sh",
        "starting | running | draining | drained | released | stopped) ;;",
        "[a-z]*) ;;",
    ),
    "a load's word that is not known is none": ("gate.sh", "    idle | probing) ;;", "    [a-z]*) ;;"),
    "a kind that is not known is a device": (
        "gate.sh",
        "accelerator,* | cpu,* | nic,* | memory,* | disk,*) ;;",
        "[a-z]*) ;;",
    ),
    "what follows the end is not seen": (
        "gate.sh",
        'if read -r rest || [ -n "$rest" ]; then',
        "if false; then",
    ),
    "a fault without a permit closes": (
        "gate.sh",
        "'failed unpermitted'* | 'unknown unpermitted'*) unpermitted=${unpermitted:-$2} ;;",
        "'failed unpermitted'* | 'unknown unpermitted'*) fault=${fault:-$2} ;;",
    ),
    "a refusal is not seen": (
        "gate.sh",
        "'failed refused' | 'unknown refused') refusal=${refusal:-$2} ;;",
        "'failed refused') refusal=${refusal:-$2} ;;",
    ),
    "the permit of another node closes this one": ("gate.sh", "case $1${foreign:+ elsewhere} in", "case $1 in"),
    "the permit of this node is another's": ("gate.sh", '"node,node:${SLURMD_NODENAME:-}") ;;', ""),
    "a refusal closes whatever the site says": (
        "prolog.sh",
        '[ "$on_driver_refusal" = fail ] || decide refused_open "$refusal"',
        ":",
    ),
    "what is only observed is ignorance": (
        "gate.sh",
        "'unknown soft node' |",
        "'unknown observed node' | 'unknown soft node' |",
    ),
    "a slice is a board": ("gres.sh", "has_slices || order=pci", "order=pci"),
    "every AutoDetect sorts by address": ("gres.sh", "*[Nn][Vv][Ii][Dd][Ii][Aa]*) found=minor ;;", "*) found=pci ;;"),
    "blanks hide whose line it is": ("gres.sh", "=* | *=) doubtful=yes ;;", ""),
    "types stand in the order of gres.conf": ("gres.sh", '[ "${types:=$type}" = "$type" ] || doubtful=yes', ":"),
    "no type is any type": ("gres.sh", "type=none file=", "type=$types file="),
    "a resume is overruled": (
        "prolog.sh",
        'if [ "$agent" = drained ] && [ "$mode" = gate ]; then',
        "if false; then",
    ),
}


def decided(repository: Path, folder: Path, case: str, mutant: tuple[str, str, str] | None) -> tuple[int, str]:
    """Return how the prolog decides *case* in dash, with one line of one script changed."""
    gate = Gate(repository, folder, ("dash",), drain_wait_seconds=0, probe_wait_seconds=0)
    if mutant is not None:
        script, old, new = mutant
        text = (gate.scripts / script).read_text()
        assert text.count(old) == 1, f"{script} holds {old!r} {text.count(old)} times"
        (gate.scripts / script).write_text(text.replace(old, new))
    CASES[case][0](gate)
    answer = gate.prolog(WANTED.get(case, "0"))
    return answer.code, answer.decision


@pytest.mark.parametrize("case", CASES)
def test_the_scripts_as_shipped_decide_each_case(repository: Path, tmp_path: Path, case: str) -> None:
    """Else a mutant could be told from a script that is broken anyway."""
    assert decided(repository, tmp_path, case, None) == CASES[case][1]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_line_changes_a_decision(repository: Path, tmp_path: Path, name: str) -> None:
    """At least one of the cases notices."""
    noticed = [
        case
        for number, case in enumerate(CASES)
        if decided(repository, tmp_path / str(number), case, MUTANTS[name]) != CASES[case][1]
    ]
    assert noticed


SLOW_AGENT = {"drained": (BROKEN, "drained"), "draining": (UNPERMITTED, "draining"), "load": (EIGHT, "running")}
"""What the state says before the agent has answered anything."""

WAITS = {
    ("drained", 1): 1,
    ("drained", 0): 0,
    ("draining", 1): 1,
    ("load", 1): 1,
    ("load", 0): 0,
    ("then draining", 1): 1,
    ("closed and draining", 1): 1,
    ("stale", 1): 0,
}
"""How many seconds a prolog waits for an agent in that state, at those seconds in gate.conf."""

MUTANTS_OF_WAITS = {
    "each wait has a time of its own": ('[ -z "$since" ] || return', "true"),
    "the time of the site is not kept": (
        '-lt "$((drain_wait_seconds * 100))" ]',
        '-lt "$((drain_wait_seconds * 90))" ]',
    ),
    "an agent that is gone is waited for": (
        '[ "$seconds" -lt "$fresh" ] && [ "$((hundredths - since))"',
        '[ "$((hundredths - since))"',
    ),
    "a drain is not waited for": ('[ "$answer" = drained ] || wait_for_drain ;;', ": ;;"),
    "a load is waited for twice as long": (
        '-lt "$((probe_wait_seconds * 100))" ]',
        '-lt "$((probe_wait_seconds * 200))" ]',
    ),
    "a permit is not waited for": ("        wait_for_permit\n", "        waited=yes\n"),
    "a resume is not asked about": ('[ -n "$asked" ] || ! ask_agent || return 0', "true"),
}


def asks_a_permit(gate: Gate, _sleeps: int) -> None:
    """The agent acknowledged what was known, and asks a permit for a new fault."""
    gate.write(*UNPERMITTED, never=True, agent="draining")


def waited(repository: Path, folder: Path, mutant: tuple[str, str] | None) -> dict[tuple[str, int], float]:
    """Return how long the prolog waits in each case in dash, with one line of it changed."""
    found = {}
    for number, (state, seconds) in enumerate(WAITS):
        gate = SteppedGate(repository, folder / str(number), ("dash",))
        gate.set(drain_wait_seconds=seconds, probe_wait_seconds=seconds)
        if mutant is not None:
            script = gate.scripts / "prolog.sh"
            text = script.read_text()
            assert text.count(mutant[0]) == 1, f"the prolog holds {mutant[0]!r} {text.count(mutant[0])} times"
            script.write_text(text.replace(*mutant))
        lines, agent = SLOW_AGENT.get(state, (BROKEN, "draining" if "draining" in state else "drained"))
        if state == "then draining":
            agent = "drained"
            gate.agent = partial(asks_a_permit, gate)
        load = "probing" if state == "load" else "idle"
        gate.write(*lines, never=True, agent=agent, load=load, expires_in=-5 if state == "stale" else 60)
        gate.prolog("0")
        found[state, seconds] = gate.waited_seconds
    return found


def test_the_prolog_as_shipped_waits_as_long_as_the_site_says(repository: Path, tmp_path: Path) -> None:
    """To the hundredth of a second, on a clock that nothing else moves."""
    assert waited(repository, tmp_path, None) == WAITS


@pytest.mark.parametrize("name", MUTANTS_OF_WAITS)
def test_a_changed_line_changes_a_wait(repository: Path, tmp_path: Path, name: str) -> None:
    """At least one of the cases notices."""
    assert waited(repository, tmp_path, MUTANTS_OF_WAITS[name]) != WAITS
