"""What the store costs a start, with 200,000 rows in its journal and with none, and how it grows in a day.

The real agent is started on a simulated node, in turn on a copy of each database. What it holds in memory is what the
kernel says was the most so far, and what it holds after all of the database was looked through.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Figure, Options, main, say, timing

from fakes import schema_one  # isort: skip - harness makes it importable
from fakes.episodes import episode, moment
from fakes.running_agent import RunningAgent

from nodevet.agent.store.opening import open_store
from nodevet.agent.store.rows import Rollup, UnsavedRound
from nodevet.checks.core.model import Episode, EpisodeState, Instant

ROWS = 200_000
GPUS = 8
ROLLED = 6
START_BUDGET_MS = 1000.0
MINUTES = 1440
CLEARED = 100_000
"""Of the rows so many are of findings that ended: a node of years has few that are open."""

PROBE = """
import sys, time
from pathlib import Path
from nodevet.agent.store.opening import open_store
from nodevet.agent.store.writer import StoreWriter
def peak():
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
began = time.perf_counter()
store = open_store(Path(sys.argv[1])).store
seconds, first, used = time.perf_counter() - began, peak(), time.process_time()
writer = StoreWriter(store)
writer.wait_until_tended(600)
print(seconds, first, peak(), time.process_time() - used)
writer.close(5)
"""


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures."""
    rows = 500 if options.quick else ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"  writing {rows} rows")
        schema_one.write(folder / "old" / "nodevet.db", happened(rows))
        yield from _first_start(folder, rows)
        open_store(folder / "none" / "nodevet.db").store.close()
        for what, place in ((f"{rows} rows", folder / "old"), ("no rows", folder / "none")):
            yield from _store(place / "nodevet.db", what, options)
        yield from _agent(folder, rows, options)
        yield from _day(folder, MINUTES // 24 if options.quick else MINUTES)


def happened(rows: int) -> Iterator[tuple[Episode, Instant]]:
    """Yield *rows* changes: acknowledgements and repeats of eight devices, and findings that came and went."""
    for number in range(rows):
        now = moment(60.0 * number)
        if number < rows * CLEARED // ROWS:
            state = EpisodeState.CLEARED if number % 2 else EpisodeState.OPEN
            yield episode("thermal.hot", f"GPU-{number // 2 % GPUS}", state=state, note="n" * 300), now
        else:
            state = EpisodeState.ACKNOWLEDGED if number // GPUS % 3 else EpisodeState.OPEN
            yield episode(device=f"GPU-{number % GPUS}", state=state, count=number, note=f"{number}" * 50), now


def _first_start(folder: Path, rows: int) -> Iterator[Figure]:
    """Yield how long the step from the first schema takes, which had no table of the present state."""
    path = folder / "old" / "nodevet.db"
    say(f"  {path.stat().st_size / 2**20:.0f} MiB")
    began = time.perf_counter()
    open_store(path).store.close()
    seconds = time.perf_counter() - began
    yield Figure(what=f"first start from schema 1, {rows} rows", value=seconds * 1e3, unit="ms", budget=START_BUDGET_MS)


def _store(path: Path, what: str, options: Options) -> Iterator[Figure]:
    """Yield what opening the database at *path* costs, and looking through it afterwards."""
    found = [_probed(path) for _ in range(_rounds(options))]
    yield timing(f"store opened, {what}", [entry[0] for entry in found])
    yield Figure(what=f"peak of memory when it is open, {what}", value=_middle(found, 1) / 1024, unit="MiB")
    yield Figure(what=f"peak of memory when it was looked through, {what}", value=_middle(found, 2) / 1024, unit="MiB")
    yield Figure(what=f"processor time to look through it, {what}", value=_middle(found, 3), unit="s")


def _rounds(options: Options) -> int:
    """Return how often to repeat: each costs a process, so only once to show that it runs."""
    return 1 if options.quick else options.rounds(5)


def _probed(path: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", PROBE, str(path)], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def _middle(found: list[list[float]], place: int) -> float:
    return sorted(entry[place] for entry in found)[len(found) // 2]


def _agent(folder: Path, rows: int, options: Options) -> Iterator[Figure]:
    """Yield how long the real agent takes to listen, and what it holds, in turn on both databases."""
    seconds: dict[str, list[float]] = {"old": [], "none": []}
    peaks: dict[str, list[float]] = {"old": [], "none": []}
    for number in range(_rounds(options)):
        for kind in seconds:
            place = folder / f"{kind}-{number}"
            (place / "state").mkdir(parents=True)
            (place / "state" / "simulated-node").write_text("simulated-cpu-node (cpu-node)\n")
            shutil.copy(folder / kind / "nodevet.db", place / "state" / "nodevet.db")
            agent = RunningAgent(place, arguments=("--simulate", "cpu-node"))
            began = time.perf_counter()
            with agent:
                seconds[kind].append(time.perf_counter() - began)
                peaks[kind].append(_peak_kib(agent))
            shutil.rmtree(place)
    yield timing(f"agent listens, {rows} rows", seconds["old"], START_BUDGET_MS)
    yield timing("agent listens, no rows", seconds["none"])
    for kind, what in (("old", f"{rows} rows"), ("none", "no rows")):
        middle = sorted(peaks[kind])[len(peaks[kind]) // 2]
        yield Figure(what=f"peak of the agent's memory when it listens, {what}", value=middle / 1024, unit="MiB")


def _peak_kib(agent: RunningAgent) -> float:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return float(found[1])


def _day(folder: Path, minutes: int) -> Iterator[Figure]:
    """Yield what *minutes* of injected time, a day in earnest, leave with a counter that grows each minute."""
    for what, with_figures in (("", False), (" with the minute figures of eight GPUs", True)):
        store = open_store(folder / f"day{with_figures}" / "nodevet.db").store
        empty = store.size_bytes()
        for minute in range(minutes):
            now = moment(60.0 * minute)
            round_ = UnsavedRound((episode(count=minute + 1, seen=60.0 * minute),), {"ledger": bytes(2000)}, now)
            store.save_rounds((round_,))
            if with_figures:
                store.append_rollups(
                    [
                        Rollup(
                            int(now.wall_seconds // 60), f"GPU-{gpu}", f"quantity_{entry}", "device", 1.0, 2.0, 3.0, 6
                        )
                        for gpu in range(GPUS)
                        for entry in range(ROLLED)
                    ]
                )
        rows, size = len(store.history(limit=minutes)), store.size_bytes()
        store.close()
        if not with_figures:
            yield Figure(what="rows of the journal after a day, a counter grows each minute", value=rows, unit="rows")
        yield Figure(
            what=f"database after that day{what}", value=size / 1024, unit="KiB", note=f"empty {empty // 1024} KiB"
        )


if __name__ == "__main__":
    main("store", measure)
