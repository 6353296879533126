"""Partial reading of a message with unknown values: a value that this release does not know costs only itself.

After an upgrade under a running agent, a reader that starts anew may know more values than the agent: of a status, a
part, a kind of failure, a severity. A message is a mapping here, as received. A device of an unknown kind cannot be
read at all, and its message is not repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .errors import ModelError
from .model import Event, Failure, FailureKind, Part, Reading, ReadingStatus

Raw = Mapping[str, Any]

STEP = "restart the agent after the upgrade"

WORDS_OF_EVENTS = ("severity", "provenance")
"""Event fields whose values may be new. Without them the event is an error of unknown origin: it closes no gate."""


def salvaged(message: Raw) -> tuple[Raw, tuple[str, ...]]:
    """Return *message* with its unknown values replaced by errors, and a description of each."""
    left_out: list[str] = []
    repairs: dict[str, Callable[[Raw, list[str]], Raw]] = {"sample": _sample, "failure": _failure, "event": _event}
    repaired = {
        name: repairs[name](value, left_out) if name in repairs and isinstance(value, dict) else value
        for name, value in message.items()
    }
    return repaired, tuple(left_out)


def _sample(sample: Raw, left_out: list[str]) -> Raw:
    """Repair a sample without making it healthier: an unknown reading becomes an error, a failure stays one."""
    readings, failure = sample.get("readings"), sample.get("failure")
    found = dict(sample)
    if isinstance(readings, list):
        found["readings"] = [known for raw in readings if (known := _reading(raw, left_out)) is not None]
    if isinstance(failure, dict):
        found["failure"] = _failure(failure, left_out)
    return found


def _reading(raw: Any, left_out: list[str]) -> Any:
    """Return *raw*, an error where it is not understood, or None where even its quantity or part is unknown."""
    problem = _problem(raw, Reading)
    if not problem:
        return raw
    quantity = raw.get("quantity") if isinstance(raw, dict) else None
    left_out.append(f"reading {quantity}: {problem}")
    if not isinstance(quantity, str) or _problem(raw.get("part", {}), Part):
        return None
    detail = f"cannot be understood ({problem}): {STEP}"
    return {**raw, "value": None, "status": ReadingStatus.ERROR.value, "detail": detail}


def _failure(raw: Raw, left_out: list[str]) -> Raw:
    """Return *raw*, or a failure that blames no driver where its kind is unknown."""
    problem = _problem(raw, Failure)
    if not problem:
        return raw
    left_out.append(f"failure: {problem}")
    detail = f"{raw.get('kind')}: {raw.get('detail')}: this kind of failure is not known ({problem}): {STEP}"
    return {"kind": FailureKind.READER.value, "detail": detail}


def _event(raw: Raw, left_out: list[str]) -> Raw:
    known = {name: value for name, value in raw.items() if name not in WORDS_OF_EVENTS}
    for name in WORDS_OF_EVENTS:
        if name in raw and (problem := _problem({**known, name: raw[name]}, Event)):
            left_out.append(f"{name} of event {raw.get('code')}: {problem}")
        elif name in raw:
            known[name] = raw[name]
    return known


def _problem(raw: Any, kind: type[msgspec.Struct]) -> str:
    """Return why *raw* is no *kind*; empty where it is one."""
    try:
        msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ModelError) as error:
        return str(error)
    return ""
