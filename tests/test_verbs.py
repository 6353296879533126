"""What may be asked for over the socket: every number has bounds, on the socket as on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import msgspec.inspect
import pytest

from nodevet.agent.commands.release import seconds_of
from nodevet.agent.control import LONGEST_RELEASE_SECONDS
from nodevet.agent.verbs import ReleaseArguments, verbs
from nodevet.checks.errors import UsageError

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
    """A socket is asked by scripts as well: what the command line refuses must not come in by another door."""
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
