"""What can be asked for over the agent's socket. Verbs that change something are here and never in HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec

from nodevet.agent.control.server import LONGEST_RELEASE_SECONDS, Call, NoArguments, Verb
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.load.lease import busy_reason, load_targets
from nodevet.checks.core.errors import BusyError, UsageError
from nodevet.checks.core.model import NODE, WHOLE, Device, Episode, Instant, Key, Outcome, Result, Snapshot
from nodevet.checks.engine.acknowledgement import command_words, covering_end, date_words, is_covering, was_seen
from nodevet.checks.engine.episodes import Knew
from nodevet.checks.engine.naming import are_called, chosen, is_place
from nodevet.checks.engine.verdicts import narrowed
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.documents.types import BurnInDocument

from .loads import Judge, Loads
from .term import checked_note, end_of


class Served(Judge, Protocol):
    """What the verbs need of the daemon."""

    guard: LoadGuard
    loads: Loads

    def acknowledge(
        self, key: Key, *, note: str, actor: str, knew: Knew, until: Instant | None = None
    ) -> Episode | None:
        """Acknowledge the episode of *key*, for good or *until* a moment, where the *actor* *knew* it as it is."""
        ...

    def release(self, seconds: float) -> None:
        """Close every device handle for *seconds*."""
        ...


LONGEST_LEASE_SECONDS = 31 * 86400.0
"""The longest campaigns take a week; a lease also ends with the process that holds it."""


LARGEST_UID = 2**32 - 2
"""The kernel keeps the one above it for none."""


class StatusArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checks the status is by; all where none is named."""

    checks: tuple[str, ...] = ()


class AckArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The finding to acknowledge: its code, the device by any of its names, its part in words, why, and until when.

    ``sudo_uid`` is who became root by sudo, as root says.
    """

    code: str
    note: str
    device: str = NODE
    part: str | None = None
    until: str | None = None
    sudo_uid: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_UID)] | None = None


class LeaseArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a load wants to run, and on which devices (none: all that a load runs on)."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE_SECONDS)]
    devices: tuple[str, ...] = ()


class ResultArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a load measured, and by which plan; ``ended``: False where it goes on, and this is wrong already."""

    results: tuple[Result, ...]
    plan: str
    ended: bool = True


class ReleaseArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long every handle of a device stays closed."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_RELEASE_SECONDS)]


def verbs(served: Served) -> dict[str, Verb]:
    """Return every verb, served by *served*."""
    return {
        "status": Verb(handler=_bound(_status, served), arguments=StatusArguments),
        "watch": Verb(handler=lambda _call: None, arguments=NoArguments, streams=True),
        "ack": Verb(handler=_bound(_ack, served), arguments=AckArguments, changes=True),
        "lease": Verb(handler=_bound(_lease, served), arguments=LeaseArguments, changes=True),
        "result": Verb(handler=_bound(_result, served), arguments=ResultArguments, changes=True),
        "release": Verb(handler=_bound(_release, served), arguments=ReleaseArguments, changes=True),
    }


def _bound(
    handler: Callable[[Served, Call], Mapping[str, Any] | None], served: Served
) -> Callable[[Call], Mapping[str, Any] | None]:
    return lambda call: handler(served, call)


def _status(served: Served, call: Call) -> Mapping[str, Any]:
    snapshot, names = served.snapshot, call.arguments.checks
    unknown = set(names) - {run.check for run in snapshot.checks}
    if unknown and snapshot.checks:
        raise UsageError(f"check: the agent runs no check called {min(unknown)!r}; see nodevet check --list")
    chosen = narrowed(snapshot, names) if names else snapshot
    document: dict[str, Any] = msgspec.to_builtins(status_document(chosen))
    return document


def _ack(served: Served, call: Call) -> None:
    """Acknowledge; the answer follows when that is on the disk."""
    wanted: AckArguments = call.arguments
    note = checked_note(wanted.note)
    shown = _find(served.snapshot, wanted)
    key = shown.key
    until = None if wanted.until is None else end_of(wanted.until, served.now)
    if is_covering(shown) and until is None:
        covers = covering_end(shown)
        end = "" if covers is None else f" until {date_words(covers)}"
        words = f"{key} is not present now, and its return is acknowledged{end}"
        raise UsageError(f"ack: {words}: set --until to change this")
    actor = f"uid {call.peer.uid}"
    if call.peer.uid == 0 and wanted.sudo_uid is not None:
        actor += f" (sudo by uid {wanted.sudo_uid})"
    episode = served.acknowledge(key, note=note, actor=actor, knew=partial(was_seen, shown), until=until)
    if episode is None:
        raise UsageError(f"ack: {key} is not confirmed yet, or has changed since it was shown: run nodevet status")
    message = f"acknowledged: {episode.key}; {_term(episode)}"
    served.when_kept(lambda trouble: call.answer({"acknowledged": True, "message": _with(message, trouble)}))


def _with(message: str, trouble: str) -> str:
    """Return *message* with what is wrong where what it tells could not be kept."""
    return f"{message}; not stored ({trouble}): a crash would lose it" if trouble else message


def _with_notice(burn_in: BurnInDocument, trouble: str) -> BurnInDocument:
    """Return *burn_in* with what is wrong among the agent's notices, where its results could not be kept."""
    if not trouble or burn_in.agent is None:
        return burn_in
    notice = f"the agent has not stored the results ({trouble}): a crash would lose them"
    agent = msgspec.structs.replace(burn_in.agent, notices=(*burn_in.agent.notices, notice))
    return msgspec.structs.replace(burn_in, agent=agent)


def _term(episode: Episode) -> str:
    """Return when the acknowledged *episode* counts again."""
    worse = "it counts again if it needs a more severe action"
    if episode.outcome is Outcome.UNMEASURED:
        worse = "it counts again if it is measured and is bad"
    if episode.until is None:
        return f"{worse}, or if it clears and occurs again"
    if is_covering(episode):
        return f"{worse}, or if it returns after {date_words(episode.until)}"
    return f"{worse}, or if it is still present after {date_words(episode.until)}"


def _find(snapshot: Snapshot, wanted: AckArguments) -> Episode:
    """Return the finding that is meant; its device may be one that is gone."""
    known = {episode.key: episode for episode in (*snapshot.episodes, *snapshot.covered)}
    ids = {device.id for device in are_called(snapshot.devices, wanted.device)}
    matches = [
        episode
        for episode in known.values()
        if episode.key.code == wanted.code
        and (episode.key.device in ids or is_place(wanted.device, episode.key.device, episode.pci, episode.serial))
        and (wanted.part is None or str(episode.key.part).casefold() == wanted.part.strip().casefold())
    ]
    whole = [episode for episode in matches if episode.key.part == WHOLE]
    if len(matches) == 1 or (wanted.part is None and len(whole) == 1):
        return (whole or matches)[0]
    if matches:
        choices = ", ".join(command_words(episode.key) for episode in matches)
        raise UsageError(f"ack: {wanted.code} on {wanted.device} stands for several findings: choose one of {choices}")
    same = ", ".join(command_words(key) for key in known if key.code == wanted.code)
    if same:
        raise UsageError(f"ack: no finding {wanted.code} on {wanted.device}; choose one of {same}")
    typed = ", ".join(map(command_words, known)) or "none"
    raise UsageError(f"ack: no finding {wanted.code} on {wanted.device}; findings now: {typed}")


def _lease(served: Served, call: Call) -> None:
    """Announce a load; the answer follows when its announcement is on disk and no job is here."""
    wanted: LeaseArguments = call.arguments
    _refuse_simulated(served, "burn-in")
    if served.loads.stop_probe("gives way to a burn-in"):
        raise BusyError("burn-in: the agent's probe is ending: try again in two seconds")
    snapshot = served.snapshot
    devices = _targets(snapshot, wanted.devices)
    reason = busy_reason(snapshot, devices)
    if reason:
        raise BusyError(f"burn-in: {reason}; a load runs on idle devices only")
    pid = call.peer.pid
    names = (device.id for device in devices)
    refusal = served.guard.announce("burn-in", pid, names, wanted.seconds, snapshot.generation)
    if refusal:
        raise BusyError(f"burn-in: {refusal}")

    def give_back() -> None:
        served.guard.leases.give_back(pid)

    def answer(refused: str | None) -> None:
        if refused:
            call.refuse(f"burn-in: {refused}")
        else:
            # Of the look that chose them: a board that came until now counts as one that came during the load.
            among = msgspec.to_builtins(snapshot.devices)
            call.answer({"granted": True, "devices": msgspec.to_builtins(devices), "among": among})

    call.when_gone(give_back)
    served.guard.tell(pid, answer)


def _refuse_simulated(served: Served, verb: str) -> None:
    """Keep real loads away: what they measure is no result of a node that does not exist."""
    if served.snapshot.simulated:
        words = "is simulated, so no load can run on it; use the runtime directory of a real node"
        raise BusyError(f"{verb}: {served.snapshot.node} {words}")


def _targets(snapshot: Snapshot, names: tuple[str, ...]) -> tuple[Device, ...]:
    targets = load_targets(snapshot.devices)
    return chosen(targets, names, "burn-in") if names else targets


def _result(served: Served, call: Call) -> None:
    """Judge results; the answer follows when they are on the disk."""
    wanted: ResultArguments = call.arguments
    _refuse_simulated(served, "burn-in")
    if not wanted.ended:
        served.loads.take_found(wanted.results)
        served.when_kept(lambda _trouble: call.answer({"taken": True}))
        return
    burn_in = served.loads.take_results(wanted.results, wanted.plan)
    if burn_in is None:
        raise BusyError("result: the agent's own probe runs, and it granted no lease for these results")
    served.when_kept(lambda trouble: call.answer(msgspec.to_builtins(_with_notice(burn_in, trouble))))


def _release(served: Served, call: Call) -> None:
    """Let go of the devices; the answer follows when that is on the disk."""
    wanted: ReleaseArguments = call.arguments
    served.release(wanted.seconds)
    message = f"every device handle is closed within 5 s and stays closed for {wanted.seconds:g} s"
    served.when_kept(lambda trouble: call.answer({"released": True, "message": _with(message, trouble)}))
