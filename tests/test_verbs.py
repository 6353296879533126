"""What may be asked for over the socket: every number has bounds, on the socket as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import msgspec.inspect
import pytest
from fakes.snapshots import cpu, cpu_node, gpu_node

from nodevet.agent.commands.release import seconds_of
from nodevet.agent.control.server import LONGEST_RELEASE_SECONDS
from nodevet.agent.daemon.verbs import LeaseArguments, ReleaseArguments, ResultArguments, verbs
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Result, Snapshot
from nodevet.exporters.documents.schema import burn_in_document
from nodevet.exporters.documents.types import BurnInDocument

VERBS = verbs(cast(Any, None))


def numbers() -> Iterator[tuple[str, msgspec.inspect.FloatType | msgspec.inspect.IntType]]:
    """Yield each number that a verb takes by ``verb.argument``, with its type."""
    for name, verb in VERBS.items():
        info = msgspec.inspect.type_info(verb.arguments)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
            for kind in kinds:
                if isinstance(kind, msgspec.inspect.FloatType | msgspec.inspect.IntType):
                    yield f"{name}.{field.name}", kind


def test_every_number_has_a_lower_and_an_upper_bound() -> None:
    """A socket is asked by scripts as well: what the command line refuses must not come in by the socket."""
    found = dict(numbers())
    assert {"release.seconds", "lease.seconds", "ack.sudo_uid"} <= set(found)
    unbounded = [
        name
        for name, kind in found.items()
        if (kind.gt is None and kind.ge is None) or (kind.lt is None and kind.le is None)
    ]
    assert unbounded == []


@pytest.mark.parametrize("seconds", [-5, 0, LONGEST_RELEASE_SECONDS + 1, 1e300, "600"])
def test_a_release_is_bounded_on_the_socket(seconds: object) -> None:
    """A release that never ends would leave the node unread for ever."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"seconds": seconds}, ReleaseArguments)


@pytest.mark.parametrize("text", ["-5", "0", "25h", "1e300", "nan"])
def test_a_release_is_bounded_on_the_command_line(text: str) -> None:
    """By the same limit."""
    with pytest.raises(UsageError, match="up to 24h"):
        seconds_of(text)


class Loaded:
    """Of the daemon what takes the results of a load; *trouble* is what is wrong with the store."""

    def __init__(self, trouble: str) -> None:
        """Take results that can be kept, or not."""
        self.snapshot = gpu_node()
        self.loads = self
        self._trouble = trouble

    def take_results(self, results: tuple[Result, ...], plan: str) -> BurnInDocument:
        """Return their document."""
        return burn_in_document(self.snapshot, plan=plan, results=results)

    def when_kept(self, act: Callable[[str], None]) -> None:
        """Say at once how that went."""
        act(self._trouble)


@pytest.mark.parametrize("trouble", ["", "nodevet.db: disk full"])
def test_the_answer_to_results_says_that_they_are_not_kept(trouble: str) -> None:
    """As that to an acknowledgement and to a release does: a crash would lose them, and no mirror has them."""
    told: list[dict[str, Any]] = []
    call = SimpleNamespace(arguments=ResultArguments((), "short"), answer=told.append)
    verbs(cast(Any, Loaded(trouble)))["result"].handler(cast(Any, call))
    notices = " ".join(told[0]["agent"]["notices"])
    assert ("not stored" in notices, "disk full" in notices) == (bool(trouble), bool(trouble))


def leased(snapshot: Snapshot, later: Snapshot, wanted: str) -> dict[str, Any]:
    """Return the answer to a lease of *wanted* that is asked at *snapshot* and granted at *later*."""
    told: list[dict[str, Any]] = []

    def grant(_pid: int, answer: Callable[[str | None], None]) -> None:
        served.snapshot = later
        answer(None)

    guard = SimpleNamespace(announce=lambda *_of: None, tell=grant)
    loads = SimpleNamespace(stop_probe=lambda _why: False)
    served = SimpleNamespace(snapshot=snapshot, guard=guard, loads=loads)
    call = SimpleNamespace(
        arguments=LeaseArguments(60.0, (wanted,)),
        peer=SimpleNamespace(pid=1),
        when_gone=lambda _act: None,
        answer=told.append,
        refuse=pytest.fail,
    )
    verbs(cast(Any, served))["lease"].handler(cast(Any, call))
    return told[0]


def test_a_lease_names_all_devices_of_the_node() -> None:
    """Whoever loads one of them must see whether another one has its name."""
    snapshot, wanted = cpu_node(), cpu(1).id
    told = leased(snapshot, snapshot, wanted)
    assert [device["id"] for device in told["devices"]] == [wanted]
    assert [device["id"] for device in told["among"]] == [device.id for device in snapshot.devices]


def test_a_lease_names_no_device_that_came_while_it_was_granted() -> None:
    """It is not loaded: the load tells of it as of one that was listed late, where it was not among those before."""
    every = cpu_node()
    first = msgspec.structs.replace(every, devices=every.devices[:1])
    wanted = first.devices[0].id
    assert [device["id"] for device in leased(first, every, wanted)["among"]] == [wanted]
