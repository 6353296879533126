"""Validates the output of a backend for the agent: an invalid value costs only itself.

A driver may return anything: bytes that are no text, a negative size, a number of an unexpected type. An invalid value
is removed and named; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from nodevet.checks.core.guard import Bug, attempt, one_line
from nodevet.checks.core.model import Device, DeviceKind, Part, Reading, ReadingStatus, Sample
from nodevet.checks.core.quantities import measured

REQUIRED_TEXTS = ("id", "vendor", "model", "backend")
POSITIVE = ("memory_bytes", "compute_units", "maximum_clock_hertz")
NOT_NEGATIVE = ("minor", "numa_node")
LARGEST = 2**60
"""No size, clock or number of a device comes near this value."""

BLANK = Device(id="blank", kind=DeviceKind.CPU, vendor="blank", model="blank", backend="blank")
"""Holds one field at a time during validation."""

UNNAMED = "unknown"
LONGEST_TEXT = 500


def sound_text(value: object) -> str:
    """Return *value* as text that every output can show: one line, no control characters, no invalid bytes."""
    text = value if isinstance(value, str) else repr(value)
    plain = text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "replace").decode("utf-8", "replace")
    return one_line(plain)[:LONGEST_TEXT]


def sound_readings(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Return *readings*, those with a value out of range or of an unusable type with status ``error``."""
    readings = tuple(readings)
    done = attempt(lambda: tuple(map(measured, readings)))
    return tuple(map(_sound_reading, readings)) if isinstance(done, Bug) else done


def sound_sample(sample: Sample) -> Sample:
    """Return *sample* in a form that can be sent; an invalid reading has status ``error`` instead."""
    if not isinstance(attempt(partial(_passed, sample, Sample)), Bug):
        return sample
    readings = tuple(_passable(reading) for reading in sample.readings)
    failure = sample.failure
    if failure is not None:
        failure = msgspec.structs.replace(failure, detail=sound_text(failure.detail))
    return msgspec.structs.replace(sample, readings=readings, failure=failure, device=sound_text(sample.device))


class Checked:
    """Validates the samples of one group of one device; a reading that was in the last one is not validated again.

    A backend may return the same object for an unchanged value, and no reading changes after it was made.
    """

    def __init__(self) -> None:
        """Start without a sample."""
        self._told: tuple[Reading, ...] = ()
        self._sound: tuple[Reading, ...] = ()
        self._sent: tuple[Reading, ...] = ()

    def readings(self, readings: Iterable[Reading]) -> tuple[Reading, ...]:
        """Return *readings* as ``sound_readings`` does."""
        told = tuple(readings)
        new = sound_readings(_new(told, self._told))
        if len(new) < len(told):
            found = iter(new)
            pairs = zip(told, self._told, self._sound, strict=True)
            new = tuple([sound if reading is before else next(found) for reading, before, sound in pairs])
        self._told, self._sound = told, new
        return new

    def sample(self, sample: Sample) -> Sample:
        """Return *sample* as ``sound_sample`` does."""
        changed = msgspec.structs.replace(sample, readings=_new(sample.readings, self._sent))
        self._sent = ()
        if sound_sample(changed) is not changed:
            return sound_sample(sample)
        self._sent = sample.readings
        return sample


def _new(readings: tuple[Reading, ...], before: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Return those of *readings* that are not the same objects as *before*; all, if there are more or fewer."""
    if len(readings) != len(before):
        return readings
    return tuple([reading for reading, known in zip(readings, before, strict=True) if reading is not known])


def sound_device(device: Device) -> tuple[Device, tuple[str, ...]]:
    """Return *device* with valid fields only, and a description of each invalid one."""
    wrong = [field for field in device.__struct_fields__ if _is_wrong(field, getattr(device, field))]
    if not wrong:
        return device, ()
    changes: dict[str, Any] = {}
    for field in wrong:
        value = getattr(device, field)
        if field in REQUIRED_TEXTS:
            changes[field] = sound_text(value) or UNNAMED
        elif isinstance(value, str) and not _is_wrong(field, sound_text(value) or None):
            changes[field] = sound_text(value) or None
        else:
            changes[field] = getattr(BLANK, field)
    complaints = tuple(f"{field} of {sound_text(device.id)} is {sound_text(getattr(device, field))}" for field in wrong)
    return msgspec.structs.replace(device, **changes), complaints


def told_apart(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return *devices* with unique ids: of two that invalid text gave one id, the later uses its address or number."""
    known: dict[str, Device] = {}
    for number, device in enumerate(devices):
        names = (device.id, device.pci, f"{device.id} {number}")
        name = next(name for name in names if name and name not in known)
        known[name] = device if name == device.id else msgspec.structs.replace(device, id=name)
    return tuple(known.values())


def _sound_reading(reading: Reading) -> Reading:
    done = attempt(partial(measured, reading))
    return _unreadable(reading, done) if isinstance(done, Bug) else done


def _passable(reading: Reading) -> Reading:
    reading = msgspec.structs.replace(reading, part=_passable_part(reading.part))
    done = attempt(partial(_passed, reading, Reading))
    if not isinstance(done, Bug):
        return reading
    if isinstance(reading.value, str) and not isinstance(attempt(lambda: sound_text(reading.value).encode()), Bug):
        return msgspec.structs.replace(reading, value=sound_text(reading.value), detail=sound_text(reading.detail))
    return _unreadable(reading, done)


def _passable_part(part: Part) -> Part:
    """Return *part* with lone surrogates in its name replaced by their numbers: different parts stay different."""
    return Part(part.kind, part.name.encode("utf-8", "backslashreplace").decode(), part.index)


def _unreadable(reading: Reading, bug: Bug) -> Reading:
    detail = sound_text(f"{reading.value!r} cannot be understood: {bug.error}")
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, detail)


def _is_wrong(field: str, value: Any) -> bool:
    """Return whether *value* cannot be sent as *field*, or is impossible for a device."""
    alone = msgspec.structs.replace(BLANK, **{field: value})
    if isinstance(attempt(partial(_passed, alone, Device)), Bug):
        return True
    if isinstance(value, str):
        return not value.isprintable() or len(value) > LONGEST_TEXT or (not value and field in REQUIRED_TEXTS)
    if isinstance(value, int):
        low = 1 if field in POSITIVE else 0 if field in NOT_NEGATIVE else -LARGEST
        return not low <= value <= LARGEST
    return False


def _passed(value: Any, kind: type[Any]) -> Any:
    """Return *value* as the other end decodes it. Raises any exception of encoding or decoding."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


def _is_escaped(text: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in text)
