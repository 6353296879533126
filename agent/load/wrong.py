"""What a load that goes on knows to be wrong: told as soon as it is known, for its end may be hours away."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.model import Result, ResultState

__all__ = ["UntoldWrong"]


class UntoldWrong:
    """Picks the wrong results of one load that were not told yet, the first of each format of each device."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: set[tuple[tuple[str, ...], str | None]] = set()

    def of(self, known: Iterable[Result]) -> tuple[Result, ...]:
        """Return those of *known* that are wrong and not told yet, as results of a load that goes on."""
        return tuple(
            msgspec.structs.replace(result, state=ResultState.INTERRUPTED, detail="found before its load ended")
            for result in known
            if result.metric("mismatches") and (result.devices, result.dtype) not in self._told
        )

    def told(self, results: Iterable[Result]) -> None:
        """Note that *results* have arrived: they are not told again."""
        self._told |= {(result.devices, result.dtype) for result in results}
