"""What the result of a load proves of its devices, and whether that ends an episode. Pure.

reference/clearing.csv says for each class which proof ends it. What happened once in n products is not disproved by a
load of two seconds: a wrong result asks for as many products of the same kind as make another one likely, in one load,
as warm, at as much power and over as much memory as when it showed. Several short loads do not add up, because each of
them begins cold. What was not recorded cannot be compared, so it is not proved; what a device cannot tell is left out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from nodevet.checks.core.model import (
    Action,
    Clearing,
    Device,
    Episode,
    EpisodeState,
    Finding,
    Instant,
    Result,
    ResultState,
    Shown,
    compared_serial,
    told_serial,
)
from nodevet.checks.reference.tables import load_table

LEFT_OUT = "left_out"
"""The condition of a result that says which part of its device the load did not reach."""

CONDITIONS = ("temperature_celsius", "power_watts")
"""The conditions of a result under which a re-test must be no easier than the load that showed a wrong result."""

LoadKey = tuple[str, tuple[str, ...], str | None]
"""The workload of a result, its devices and its number format."""

SHOWN_AT_MOST = 16
REMEMBERED_AT_MOST = 256
AGED_EVERY_SECONDS = 3600.0
_DAY_SECONDS = 86400.0


class ClearingRow(msgspec.Struct, frozen=True):
    """What ends an episode of one class, and whether one that comes and goes is held open for a while.

    An acknowledgement stops any episode from counting.
    """

    clearing: Clearing
    good_samples: int | None
    passed_retest: bool
    other_serial: bool
    job_ended: bool
    retest_needs_reboot: tuple[Action, ...]
    damped: bool
    retest_products_per_wrong: int | None
    retest_seconds: float | None
    retest_cooler_celsius: float | None
    retest_memory_ratio: float | None
    retest_longest_seconds: float | None
    replace_after: int | None
    replace_within_days: float | None
    source: str


@lru_cache(maxsize=1)
def clearing_table() -> dict[Clearing, ClearingRow]:
    """Return the rows of reference/clearing.csv by class."""
    return {row.clearing: row for row in load_table("clearing.csv", ClearingRow)}


def is_passed_retest(result: Result) -> bool:
    """Return whether *result* proves its devices: it finished, verified something, found nothing wrong.

    A load that did not first find every fault that it planted in its own results proves nothing, and one that did not
    reach all of its device proves nothing of it.
    """
    return (
        result.state is ResultState.FINISHED
        and not result.conditions.get(LEFT_OUT)
        and (result.metric("gemms_verified") or 0) > 0
        and result.metric("mismatches") == 0
        and (result.metric("self_test_planted") or 0) > 0
        and result.metric("self_test_found") == result.metric("self_test_planted")
    )


def is_same_run(result: Result, other: Result) -> bool:
    """Return whether both are the same run of a workload, told twice: alike in all but what the agent stamps on it."""
    bare = [msgspec.structs.replace(each, conditions={}) for each in (result, other)]
    return bare[0] == bare[1] and result.conditions.get("load") == other.conditions.get("load")


def keep_latest(latest: dict[LoadKey, Result], result: Result) -> None:
    """Keep *result* in *latest* as that of its workload, devices and number format.

    A wrong result stands until one that finished takes its place: to be stopped proves nothing. One that comes
    again, because nobody heard the answer, changes nothing. They stand in the order in which they came.
    """
    key = (result.workload, result.devices, result.dtype)
    before = latest.get(key)
    if before is not None and is_same_run(before, result):
        return
    unproven = result.state is not ResultState.FINISHED and not result.metric("mismatches")
    if not (before is not None and before.metric("mismatches") and unproven):
        latest.pop(key, None)
        latest[key] = result


class LatestResults:
    """The latest result of each workload, devices and number format, and each wrong one that nobody has judged yet.

    A load that was killed leaves a wrong result behind that only the next look judges. Where another load of the same
    format comes before that look, its result takes that place in time, and must not hide the wrong one.
    """

    def __init__(self) -> None:
        """Begin without results."""
        self._latest: dict[LoadKey, Result] = {}
        self._unjudged: list[Result] = []

    @property
    def everything(self) -> tuple[Result, ...]:
        """Return all of them, in the order in which they came."""
        kept = {id(result) for result in self._latest.values()}
        return (*(result for result in self._unjudged if id(result) not in kept), *self._latest.values())

    def take(self, result: Result) -> None:
        """Take *result*, which came after all others."""
        result = _sound(result)
        keep_latest(self._latest, result)
        is_kept = any(each is result for each in self._latest.values())
        if is_kept and result.metric("mismatches"):
            others = [each for each in self._unjudged if not _is_further(result, each)]
            self._unjudged = [*others, result][-SHOWN_AT_MOST:]

    def forget(self, device: str) -> None:
        """Forget what was told of *device* alone: another board sits in its place."""
        self._latest = {key: result for key, result in self._latest.items() if result.devices != (device,)}
        self._unjudged = [result for result in self._unjudged if result.devices != (device,)]

    def known(self, episodes: Iterable[Episode]) -> None:
        """Note that *episodes* tell all of some: an agent before, or the look before, has judged them."""
        shown = {episode.key.device: episode.finding.shown for episode in episodes if episode.finding.shown}
        self._unjudged = [
            result
            for result in self._unjudged
            if any(merged(shown.get(name, ()), (shown_by(result),)) != shown.get(name) for name in result.devices)
        ]

    def judged(self, devices: Container[str]) -> None:
        """Note that a check has seen all results of *devices*."""
        self._unjudged = [result for result in self._unjudged if not all(name in devices for name in result.devices)]


def _sound(result: Result) -> Result:
    """Return *result* as it can be judged: what is no number is none, and a condition of another kind is left out.

    One that raised in each judgement would blind the node, over restarts too.
    """
    metrics = tuple(
        entry if entry.value is None or math.isfinite(entry.value) else msgspec.structs.replace(entry, value=None)
        for entry in result.metrics
    )
    conditions = {name: value for name, value in result.conditions.items() if _is_condition(name, value)}
    return msgspec.structs.replace(result, metrics=metrics, conditions=conditions)


def _is_condition(name: str, value: Any) -> bool:
    if name in CONDITIONS:
        return isinstance(value, int | float) and math.isfinite(value)
    return name != "unsupported" or isinstance(value, list | tuple)


def _is_further(result: Result, known: Result) -> bool:
    """Return whether *result* is of the same workload in the same load as *known*, and tells more of it."""
    names = ("workload", "devices", "dtype")
    is_alike = all(getattr(result, name) == getattr(known, name) for name in names)
    return is_alike and result.conditions.get("load") == known.conditions.get("load")


def retest_proof(device: str, episode: Episode, row: ClearingRow, loads: Iterable[Result], now: Instant) -> str | None:
    """Return which of *loads* proves *device* after the episode was last seen, or None.

    Boots have no order but that the present one is the last: wall clocks may be wrong. While a wrong result of another
    workload or number format stands, no passed one proves the device.
    """
    results = [result for result in loads if device in result.devices]
    if any(result.metric("mismatches") for result in results):
        return None
    proofs = [result for result in filter(is_passed_retest, results) if _is_since(result, episode, row, now)]
    if row.retest_products_per_wrong is not None:
        shown = episode.finding.shown
        found = [next((result for result in proofs if _disproves(result, entry, row)), None) for entry in shown]
        proofs = [result for result in found if result is not None] if shown and None not in found else []
    if not proofs:
        return None
    return f"passed re-test ({proofs[0].workload}, {proofs[0].metric('gemms_verified')} verified)"


def _is_since(result: Result, episode: Episode, row: ClearingRow, now: Instant) -> bool:
    """Return whether *result* began after the episode was last seen, and after the reboot that it may ask for."""
    same_boot = result.started.boot_id == episode.last_seen.boot_id
    if same_boot and episode.finding.action in row.retest_needs_reboot:
        return False
    this_boot = result.started.boot_id == now.boot_id
    return is_later(result.started, episode.last_seen) if same_boot else this_boot


def _disproves(result: Result, shown: Shown, row: ClearingRow) -> bool:
    """Return whether the passed *result* was long and hard enough to show again what *shown* showed."""
    demand = _demand(shown, row)
    if demand is None or (result.workload, result.dtype, result.shape) != (shown.workload, shown.dtype, shown.shape):
        return False
    products, seconds = demand
    long_enough = (result.metric("gemms_verified") or 0) >= products and (
        result.metric("measured_seconds") or 0
    ) >= seconds
    slack = {"temperature_celsius": row.retest_cooler_celsius or 0.0}
    if shown.memory_bytes is not None and (result.metric("memory_bytes") or 0) < _least_memory(shown.memory_bytes, row):
        return False  # the bad cell may lie in what it did not reach
    return long_enough and all(_is_as_hard(name, result, shown, slack.get(name, 0.0)) for name in CONDITIONS)


def _least_memory(shown: int, row: ClearingRow) -> float:
    """Return how many bytes a re-test must take: what is free differs a little from load to load."""
    return shown * (1.0 if row.retest_memory_ratio is None else row.retest_memory_ratio)


def _demand(shown: Shown, row: ClearingRow) -> tuple[int, float] | None:
    """Return how many products and seconds a re-test needs, or None where no re-test of a day disproves *shown*."""
    if not shown.of or shown.wrong <= 0 or row.retest_products_per_wrong is None:
        return None
    factor = row.retest_products_per_wrong / shown.wrong
    seconds = max(row.retest_seconds or 0.0, factor * (shown.seconds or 0.0))
    if row.retest_longest_seconds is not None and seconds > row.retest_longest_seconds:
        return None
    return math.ceil(factor * shown.of), row.retest_seconds or 0.0


def _is_as_hard(name: str, result: Result, shown: Shown, slack: float) -> bool:
    """Return whether *result* ran under the condition *name* as it was when the wrong result showed."""
    then, now = _condition(shown, name), result.conditions.get(name)
    if then is None:
        return name in shown.unsupported and now is None and name in result.conditions.get("unsupported", ())
    return isinstance(now, int | float) and now >= then - slack


def _condition(shown: Shown, name: str) -> float | None:
    return {"temperature_celsius": shown.temperature_celsius, "power_watts": shown.power_watts}[name]


def shown_by(result: Result) -> Shown:
    """Return how the wrong *result* showed."""
    of, conditions = result.metric("gemms_checked") or result.metric("gemms_verified"), result.conditions
    temperature, power = (conditions.get(name) for name in CONDITIONS)
    memory = result.metric("memory_bytes")
    return Shown(
        load=str(conditions.get("load") or f"{result.started.boot_id}:{result.started.boottime_ns}"),
        workload=result.workload,
        dtype=result.dtype,
        shape=result.shape,
        wrong=int(result.metric("mismatches") or 0),
        of=None if of is None else int(of),
        seconds=result.metric("measured_seconds"),
        temperature_celsius=temperature if isinstance(temperature, int | float) else None,
        power_watts=power if isinstance(power, int | float) else None,
        unsupported=tuple(str(name) for name in conditions.get("unsupported", ())),
        memory_bytes=None if memory is None else int(memory),
    )


def merged(known: tuple[Shown, ...], fresh: tuple[Shown, ...]) -> tuple[Shown, ...]:
    """Return *known* wrong results with *fresh* ones: all of them must be disproved. The newest are kept.

    One that is told again by an agent that did not record its heat or power keeps what was known of them.
    """
    by_load: dict[tuple[object, ...], Shown] = {}
    for entry in (*known, *fresh):
        name = (entry.load, entry.workload, entry.dtype, entry.shape)
        by_load[name] = _with_conditions(entry, by_load.get(name))
    return tuple(by_load.values())[-SHOWN_AT_MOST:]


def _with_conditions(shown: Shown, before: Shown | None) -> Shown:
    lost = {name: _condition(before, name) for name in CONDITIONS if before and _condition(shown, name) is None}
    return msgspec.structs.replace(shown, **{name: value for name, value in lost.items() if value is not None})


def demand_words(shown: Shown, row: ClearingRow) -> str:
    """Return for people which re-test disproves *shown*."""
    unknown = [name for name in CONDITIONS if _condition(shown, name) is None and name not in shown.unsupported]
    demand = _demand(shown, row)
    if demand is None or unknown:
        why = "the required re-test exceeds one day" if demand is None else f"no {_plain(unknown[0])} was recorded"
        return f"no re-test clears it ({why}): acknowledge it or replace the board"
    products, seconds = demand
    known = ((_condition(shown, name), sign) for name, sign in zip(CONDITIONS, ("°C", "W"), strict=True))
    limits = [f"{value:.0f} {sign}" for value, sign in known if value is not None]
    warm = f" at {' and '.join(limits)}" if limits else ""
    wide = "" if shown.memory_bytes is None else f" over {_size(_least_memory(shown.memory_bytes, row))} of memory"
    shape = " x ".join(map(str, shown.shape))
    return (
        f"a re-test clears it with {products} {shown.dtype or ''} GEMMs of {shape} in one burn-in of "
        f"{seconds / 60:.0f} min{warm}{wide}"
    )


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{math.ceil(size_bytes / 2**20)} MiB"


def _plain(name: str) -> str:
    return name.rpartition("_")[0]


class WrongResult(msgspec.Struct, frozen=True):
    """That one board gave a wrong result in a load; remembered beyond the episode that was disproved.

    Its age is the time that the node was up since, up to the moment ``counted``: no change of the wall clock, and no
    clock that was lost, makes the node forget.
    """

    board: str
    load: str
    counted: Instant
    age_seconds: float = 0.0


def escalated(
    known: tuple[WrongResult, ...], finding: Finding, devices: Iterable[Device], now: Instant
) -> tuple[tuple[WrongResult, ...], Finding]:
    """Return the memory of wrong results after *finding*, and the finding: a second of one board asks for another.

    Several formats that are wrong in one load are one wrong result of the board.
    """
    row = clearing_table()[Clearing.WRONG_RESULT]
    if not finding.shown or row.replace_after is None or row.replace_within_days is None:
        return known, finding
    serials = (told_serial(device.serial) for device in devices if device.id == finding.device)
    names = (*filter(None, serials), finding.device)  # by its name, where its driver once did not tell the serial
    board = names[0]
    longest = row.replace_within_days * _DAY_SECONDS
    # Those that are too old to count stay: a finding that stands shows them in each round, as if they were new.
    kept = list(known)
    alike = {compared_serial(name) or name for name in names}
    for entry in finding.shown:
        if not any(_board(each) in alike and each.load == entry.load for each in kept):
            kept.append(WrongResult(board, entry.load, now))
    memory = tuple(kept)[-REMEMBERED_AT_MOST:]
    count = len({entry.load for entry in kept if _board(entry) in alike and entry.age_seconds <= longest})
    if count < row.replace_after:
        return memory, finding
    # Neither a re-test nor another slot is what it asks for now.
    facts = finding.message.partition(f"; {demand_words(finding.shown[-1], row)}")[0]
    said = f"{facts}; wrong in {count} loads within {row.replace_within_days:.0f} days: replace the board"
    return memory, msgspec.structs.replace(finding, action=Action.REPLACE, clearing=Clearing.REPLACEMENT, message=said)


def _board(wrong: WrongResult) -> str:
    return compared_serial(wrong.board) or wrong.board


def aged(entry: WrongResult, now: Instant) -> WrongResult:
    """Return *entry* with its age as of *now*, to the hour: a ledger that changed each round would wear the disk."""
    if entry.counted.boot_id != now.boot_id:
        return msgspec.structs.replace(entry, counted=now)
    seconds = (now.boottime_ns - entry.counted.boottime_ns) / 1e9
    longest = clearing_table()[Clearing.WRONG_RESULT].replace_within_days
    is_old = longest is not None and entry.age_seconds > longest * _DAY_SECONDS  # it counts no more, however old it is
    if seconds < AGED_EVERY_SECONDS or is_old:
        return entry
    return msgspec.structs.replace(entry, counted=now, age_seconds=entry.age_seconds + seconds)


def is_later(moment: Instant, other: Instant) -> bool:
    """Return whether *moment* is after *other* in the same boot."""
    return moment.boot_id == other.boot_id and moment.boottime_ns > other.boottime_ns


def stands_wrong(other: Episode, episode: Episode, devices: tuple[str, ...]) -> bool:
    """Return whether *other* is a wrong result of one of *devices* that stands beside *episode*."""
    return (
        bool(other.finding.shown)
        and other.key.device in devices
        and other.key != episode.key
        and other.state is not EpisodeState.CLEARED
    )
