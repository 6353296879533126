"""The proof that the result of a load gives about its devices, and whether it ends an episode. Pure.

reference/clearing.csv lists for each class which proof ends it. An error that occurred once in n products is not
disproved by a load of two seconds: a wrong result requires as many products of the same kind as make another one
likely, in one load, at the same temperature, power and amount of memory. Several short loads do not add up, because
each starts cold. Unrecorded conditions cannot be compared, so they prove nothing; conditions that a device cannot
report are omitted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from functools import lru_cache

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
"""Condition of a result: the part of its device that the load did not reach."""

CONDITIONS = ("temperature_celsius", "power_watts")
"""The conditions of a result under which a re-test must be no easier than the load that showed a wrong result."""

LoadKey = tuple[str, tuple[str, ...], str | None]
"""The workload of a result, its devices and its number format."""

SHOWN_AT_MOST = 16
REMEMBERED_AT_MOST = 256
AGED_EVERY_SECONDS = 3600.0
_DAY_SECONDS = 86400.0


class ClearingRow(msgspec.Struct, frozen=True):
    """The evidence that ends an episode of one class, and whether a flapping one is held open.

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
    """Return whether *result* proves its devices: it finished, verified something and found no error.

    A load proves nothing if it did not first detect every fault that it injected into its own results, or if it did not
    reach all of its device.
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
    """Return whether both are the same run of a workload, reported twice: equal except for fields set by the agent."""
    bare = [msgspec.structs.replace(each, conditions={}) for each in (result, other)]
    return bare[0] == bare[1] and result.conditions.get("load") == other.conditions.get("load")


def keep_latest(latest: dict[LoadKey, Result], result: Result) -> None:
    """Store *result* in *latest* as that of its workload, devices and number format.

    A wrong result stays until a finished one replaces it: an interrupted load proves nothing. A repeated result, sent
    again because the reply was lost, changes nothing. The order is that of arrival.
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
    """The latest result of each workload, devices and number format, and each wrong one that was not judged yet.

    A load that was killed leaves a wrong result that only the next round judges. If another load of the same format
    finishes before that round, its result must not hide the wrong one.
    """

    def __init__(self) -> None:
        """Start without results."""
        self._latest: dict[LoadKey, Result] = {}
        self._unjudged: list[Result] = []

    @property
    def everything(self) -> tuple[Result, ...]:
        """Return all results in the order of arrival."""
        kept = {id(result) for result in self._latest.values()}
        return (*(result for result in self._unjudged if id(result) not in kept), *self._latest.values())

    def take(self, result: Result) -> None:
        """Store *result*, which arrived after all others."""
        keep_latest(self._latest, result)
        is_kept = any(each is result for each in self._latest.values())
        if is_kept and result.metric("mismatches"):
            others = [each for each in self._unjudged if not _is_further(result, each)]
            self._unjudged = [*others, result][-SHOWN_AT_MOST:]

    def forget(self, device: str) -> None:
        """Delete the results of *device* alone: another board is in its slot."""
        self._latest = {key: result for key, result in self._latest.items() if result.devices != (device,)}
        self._unjudged = [result for result in self._unjudged if result.devices != (device,)]

    def known(self, episodes: Iterable[Episode]) -> None:
        """Record the results in *episodes* as judged, by an earlier agent or in an earlier round."""
        shown = {episode.key.device: episode.finding.shown for episode in episodes if episode.finding.shown}
        self._unjudged = [
            result
            for result in self._unjudged
            if any(merged(shown.get(name, ()), (shown_by(result),)) != shown.get(name) for name in result.devices)
        ]

    def judged(self, devices: Container[str]) -> None:
        """Record that a check has judged all results of *devices*."""
        self._unjudged = [result for result in self._unjudged if not all(name in devices for name in result.devices)]


def _is_further(result: Result, known: Result) -> bool:
    """Return whether *result* is of the same workload and load as *known*, with more content."""
    names = ("workload", "devices", "dtype")
    is_alike = all(getattr(result, name) == getattr(known, name) for name in names)
    return is_alike and result.conditions.get("load") == known.conditions.get("load")


def retest_proof(device: str, episode: Episode, row: ClearingRow, loads: Iterable[Result], now: Instant) -> str | None:
    """Return which of *loads* proves *device* after the episode was last seen, or None.

    Boots have no order, except that the present one is the last: wall clocks may be wrong. While a wrong result of
    another workload or number format stands, no passed one proves the device.
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
    """Return whether *result* began after the episode was last seen, and after a reboot if the class requires one."""
    same_boot = result.started.boot_id == episode.last_seen.boot_id
    if same_boot and episode.finding.action in row.retest_needs_reboot:
        return False
    this_boot = result.started.boot_id == now.boot_id
    return is_later(result.started, episode.last_seen) if same_boot else this_boot


def _disproves(result: Result, shown: Shown, row: ClearingRow) -> bool:
    """Return whether the passed *result* was long and hard enough to reproduce the error *shown*."""
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
    """Return how many bytes a re-test must use: free memory differs a little from load to load."""
    return shown * (1.0 if row.retest_memory_ratio is None else row.retest_memory_ratio)


def _demand(shown: Shown, row: ClearingRow) -> tuple[int, float] | None:
    """Return the products and seconds that a re-test needs, or None if no re-test of a day disproves *shown*."""
    if not shown.of or shown.wrong <= 0 or row.retest_products_per_wrong is None:
        return None
    factor = row.retest_products_per_wrong / shown.wrong
    seconds = max(row.retest_seconds or 0.0, factor * (shown.seconds or 0.0))
    if row.retest_longest_seconds is not None and seconds > row.retest_longest_seconds:
        return None
    return math.ceil(factor * shown.of), row.retest_seconds or 0.0


def _is_as_hard(name: str, result: Result, shown: Shown, slack: float) -> bool:
    """Return whether *result* ran under the condition *name* at the level of the wrong result."""
    then, now = _condition(shown, name), result.conditions.get(name)
    if then is None:
        return name in shown.unsupported and now is None and name in result.conditions.get("unsupported", ())
    return isinstance(now, int | float) and now >= then - slack


def _condition(shown: Shown, name: str) -> float | None:
    return {"temperature_celsius": shown.temperature_celsius, "power_watts": shown.power_watts}[name]


def shown_by(result: Result) -> Shown:
    """Return the conditions and the error of the wrong *result*."""
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

    A repeated one from an agent that recorded no temperature or power keeps the known values.
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
    """Return the re-test that disproves *shown*, as text."""
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
        f"a re-test clears it: one burn-in of at least {seconds / 60:.0f} min with {products} {shown.dtype or ''} "
        f"GEMMs of {shape}{warm}{wide}"
    )


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{math.ceil(size_bytes / 2**20)} MiB"


def _plain(name: str) -> str:
    return name.rpartition("_")[0]


class WrongResult(msgspec.Struct, frozen=True):
    """A wrong result of one board in a load; remembered after its episode was disproved.

    Its age is the node's uptime since then, up to ``counted``: neither a change nor a loss of the wall clock deletes
    it.
    """

    board: str
    load: str
    counted: Instant
    age_seconds: float = 0.0


def escalated(
    known: tuple[WrongResult, ...], finding: Finding, devices: Iterable[Device], now: Instant
) -> tuple[tuple[WrongResult, ...], Finding]:
    """Return the wrong results including *finding*, and the finding: the second of one board requests its replacement.

    Several wrong formats in one load are one wrong result of the board.
    """
    row = clearing_table()[Clearing.WRONG_RESULT]
    if not finding.shown or row.replace_after is None or row.replace_within_days is None:
        return known, finding
    serials = (told_serial(device.serial) for device in devices if device.id == finding.device)
    names = (*filter(None, serials), finding.device)  # by its name if its driver once did not report the serial
    board = names[0]
    longest = row.replace_within_days * _DAY_SECONDS
    # Expired ones are kept: otherwise a standing finding would report them as new in each round.
    kept = list(known)
    alike = {compared_serial(name) or name for name in names}
    for entry in finding.shown:
        if not any(_board(each) in alike and each.load == entry.load for each in kept):
            kept.append(WrongResult(board, entry.load, now))
    memory = tuple(kept)[-REMEMBERED_AT_MOST:]
    count = len({entry.load for entry in kept if _board(entry) in alike and entry.age_seconds <= longest})
    if count < row.replace_after:
        return memory, finding
    # Neither a re-test nor another slot is its action now.
    facts = finding.message.partition(f"; {demand_words(finding.shown[-1], row)}")[0]
    said = f"{facts}; wrong in {count} loads within {row.replace_within_days:.0f} days: replace the board"
    return memory, msgspec.structs.replace(finding, action=Action.REPLACE, clearing=Clearing.REPLACEMENT, message=said)


def _board(wrong: WrongResult) -> str:
    return compared_serial(wrong.board) or wrong.board


def aged(entry: WrongResult, now: Instant) -> WrongResult:
    """Return *entry* with its age as of *now*, to the hour: a ledger that changes each round would wear the disk."""
    if entry.counted.boot_id != now.boot_id:
        return msgspec.structs.replace(entry, counted=now)
    seconds = (now.boottime_ns - entry.counted.boottime_ns) / 1e9
    longest = clearing_table()[Clearing.WRONG_RESULT].replace_within_days
    is_old = longest is not None and entry.age_seconds > longest * _DAY_SECONDS  # it no longer counts, whatever its age
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
