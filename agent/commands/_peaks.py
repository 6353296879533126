"""Peaks of the devices of a node by number format, and the model FLOPS utilization of a step. Pure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

import msgspec

from nodevet.agent.terminal.output import table
from nodevet.checks.burnin.peak import FORMATS, DeviceFacts, Peaks, find_accelerator, peaks_of
from nodevet.exporters.documents.types import DeviceDocument, ResultDocument, StatusDocument

PEAKS_SCHEMA = "nodevet.peaks/1"

_KINDS = ("specification", "highest", "held")


class Step(msgspec.Struct, frozen=True):
    """One step of a job: floating-point operations of one device, and its seconds."""

    operations: float
    seconds: float

    @property
    def rate(self) -> float:
        """Return the operations per second."""
        return self.operations / self.seconds


class FormatPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of a device in one format in operations per second, null where unknown, and a step's share of each.

    ``held`` is the peak at the clock that the device held in its last burn-in of this format.
    """

    format: str
    specification: float | None
    highest: float | None
    held: float | None
    specification_clock_hertz: float | None
    peak_source: str | None
    mfu: dict[str, float | None] | None = None


class DevicePeaks(msgspec.Struct, frozen=True, kw_only=True):
    """A device with the peaks of each format that has one; ``confidence`` and ``source`` are those of its table row."""

    id: str
    model: str
    pci: str | None
    maximum_clock_hertz: int | None
    confidence: str | None
    source: str | None
    peaks: tuple[FormatPeaks, ...]


def parse_step(text: str) -> Step:
    """Return the step of ``FLOPS,SECONDS``, such as ``1.2e15,2.5``. Raises ArgumentTypeError."""
    try:
        operations, seconds = (float(part) for part in text.split(","))
        step = Step(operations, seconds)
        if operations > 0 and seconds > 0 and math.isfinite(step.rate) and step.rate > 0:
            return step
    except (ValueError, ZeroDivisionError):
        pass
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r}: give FLOPS,SECONDS as two numbers above 0: the operations of one device in a step, and the "
        "seconds of that step, such as 1.2e15,2.5"
    )


def node_peaks(document: StatusDocument, step: Step | None) -> tuple[DevicePeaks, ...]:
    """Return the peaks of the accelerators in *document*, and the share of each that *step* reached."""
    accelerators = (device for device in document.devices if device.kind == "accelerator")
    return tuple(_device(device, document.results, step) for device in accelerators)


def _device(device: DeviceDocument, results: Sequence[ResultDocument], step: Step | None) -> DevicePeaks:
    facts = DeviceFacts(
        vendor=device.vendor,
        name=device.model,
        architecture=device.architecture,
        pci_device_id=device.pci_device_id,
        compute_units=device.compute_units,
        maximum_clock_hertz=device.maximum_clock_hertz,
    )
    # A share of another device may have its name and PCI id; without units of its own nothing is known of it.
    is_share = device.parent is not None and device.compute_units is None
    part = None if is_share else find_accelerator(facts)
    found = () if is_share else tuple(_formats(facts, device.id, results, step))
    return DevicePeaks(
        id=device.id,
        model=device.model,
        pci=device.pci,
        maximum_clock_hertz=device.maximum_clock_hertz,
        confidence=None if part is None else part.confidence,
        source=None if part is None else part.source,
        peaks=found,
    )


def _formats(
    facts: DeviceFacts, device: str, results: Sequence[ResultDocument], step: Step | None
) -> Iterator[FormatPeaks]:
    for name in FORMATS:
        peaks = peaks_of(facts, name)
        held = _held_clock(device, name, results)
        told = {"specification": peaks.specification, "highest": peaks.highest, "held": _at(peaks, held)}
        if any(told.values()):
            yield FormatPeaks(
                format=name,
                specification=told["specification"],
                highest=told["highest"],
                held=told["held"],
                specification_clock_hertz=peaks.specification_clock_hertz,
                peak_source=peaks.source,
                mfu=None if step is None else {kind: step.rate / peak if peak else None for kind, peak in told.items()},
            )


def _held_clock(device: str, name: str, results: Sequence[ResultDocument]) -> float | None:
    """Return the clock held in the last burn-in of the format *name* (``fp8`` stands for all of them)."""
    held = [
        result.value
        for result in results
        if result.device == device
        and result.metric == "clock_held_hertz"
        and (result.dtype or "").split("_")[0] == name
    ]
    return held[-1] if held else None


def _at(peaks: Peaks, clock_hertz: float | None) -> float | None:
    return None if clock_hertz is None else peaks.at(clock_hertz)


def peaks_text(devices: Sequence[DevicePeaks], step: Step | None) -> Iterator[str]:
    """Yield a table of the peaks, in which devices that have all alike share their rows, then the sources."""
    alike: dict[tuple[str, tuple[FormatPeaks, ...]], list[DevicePeaks]] = {}
    for device in devices:
        alike.setdefault((device.model, _comparable(device.peaks)), []).append(device)
    rows = [
        (model, str(len(group)), each.format, *_cells(each, step))
        for (model, _), group in alike.items()
        for each in group[0].peaks
    ]
    if rows:
        shares = tuple(f"MFU {kind.upper()}" for kind in _KINDS) if step is not None else ()
        yield table(rows, ("MODEL", "DEVICES", "FORMAT", *(kind.upper() for kind in _KINDS), "FROM", *shares))
        yield (
            "dense peaks in TFLOPS (int8: 1e12 operations per second): at the clock of the specification, at the "
            "highest clock, and at the clock held in the last burn-in"
        )
    if any(_is_beyond_all(device) for device in devices):
        yield "an MFU above 100 % in every format: check the operations (of one device, dense) and the seconds"
    yield from dict.fromkeys(map(_source, devices))


def _comparable(peaks: Sequence[FormatPeaks]) -> tuple[FormatPeaks, ...]:
    """Return *peaks* without shares, which follow from them and cannot be compared by hash."""
    return tuple(msgspec.structs.replace(each, mfu=None) for each in peaks)


def _is_beyond_all(device: DevicePeaks) -> bool:
    """Return whether a step was faster than any peak of *device*; one in bf16 is faster than the peak of fp64."""
    known = [share for each in device.peaks for share in _shares(each) if share is not None]
    return bool(known) and min(known) > 1


def _shares(peaks: FormatPeaks) -> tuple[float | None, ...]:
    return tuple((peaks.mfu or {}).values())


def _cells(peaks: FormatPeaks, step: Step | None) -> Iterator[str]:
    yield from (_tera(each) for each in (peaks.specification, peaks.highest, peaks.held))
    yield peaks.peak_source or "highest clock"
    if step is not None:
        yield from ("unknown" if share is None else f"{100 * share:.1f} %" for share in _shares(peaks))


def _tera(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate / 1e12:.4g}"


def _source(device: DevicePeaks) -> str:
    if device.source is None:
        why = "no table lists it" if device.peaks else "neither a table nor its architecture tells its peaks"
        return f"{device.model}: {why}"
    return f"{device.model}: {device.confidence} figures: {device.source}"
