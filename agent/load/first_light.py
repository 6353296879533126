"""The first load on hardware that nobody has run: what it measured, in one archive that may be sent to others.

The archive is built from named fields alone, and names of the node and its devices are replaced, so that nothing that
identifies the machine leaves it: no host name, UUID, serial number or path.
"""

from __future__ import annotations

import io
import platform
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent import __version__
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Device, DeviceKind, Sample, Snapshot
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.checks.system.files import replace
from nodevet.exporters.documents.types import BurnInDocument, ResultDocument

PLAN = "first-light"

_LEFT_OUT = frozenset({"load", "visible_uuid", "curves"})
"""Conditions that name the machine, or that stand elsewhere."""

_NAMES_ALONE = ("environment", "environment_removed")
"""Conditions of which the values may be paths of a site."""

_QUESTIONS = """Each format: are its sums exact, what does checking cost, which rate is reached, by which call of torch?
Each device: which readings does its driver give before and after a load?
Send this file to the developers of nodevet. It names no host, UUID or serial number: look into it before you do.
"""


class Archive:
    """The file of a first light, reserved before the load. Raises UsageError where it cannot be written."""

    def __init__(self, name: str) -> None:
        """Create an empty file at *name*; an existing one may be the archive of another machine."""
        self._path = Path(name)
        try:
            self._path.open("x").close()
        except OSError as error:
            raise UsageError(f"burn-in: --first-light {name}: {error.strerror}; name a new file") from error

    def write(self, document: BurnInDocument, snapshots: Iterable[Snapshot]) -> None:
        """Write what *document* measured, and the samples of *snapshots*. Raises UsageError where it cannot."""
        try:
            replace(self._path, packed(document, tuple(snapshots)))
        except OSError as error:
            raise UsageError(f"burn-in: --first-light {self._path}: {error.strerror or error}") from error

    def drop(self) -> None:
        """Remove the reserved file of a load that never ran."""
        self._path.unlink(missing_ok=True)


def packed(document: BurnInDocument, snapshots: tuple[Snapshot, ...]) -> bytes:
    """Return the archive: a compressed tar file of JSON documents."""
    devices = {device.id: device for snapshot in snapshots for device in snapshot.devices}
    mask = Mask(document, devices.values())
    files = {
        "README": _QUESTIONS.encode(),
        "software.json": _encoded(_software(document)),
        "devices.json": _encoded([mask.device(device) for device in devices.values()]),
        "results.json": _encoded([mask.result(result) for result in document.results]),
        "samples.json": _encoded([mask.sample(sample) for snapshot in snapshots for sample in snapshot.samples]),
    }
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"first-light/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


class Mask:
    """Gives each device a number, and replaces the names of node and devices in texts."""

    def __init__(self, document: BurnInDocument, devices: Iterable[Device]) -> None:
        """Number the *devices*; those of *document* that are not among them are numbered after them."""
        everything = tuple(devices)
        ids = dict.fromkeys([*(device.id for device in everything), *(each.device for each in document.results)])
        self._numbers = {device: f"device-{number}" for number, device in enumerate(ids)}
        names = {document.node: "node"}
        for device in everything:
            for name in (device.id, device.uuid, device.serial, device.called, *_bare(device.uuid)):
                names[name or ""] = self._numbers[device.id]
        processors = {device.id for device in everything if device.kind is DeviceKind.CPU}
        self._names = {name: shown for name, shown in names.items() if name and name not in processors}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return *text* with every known name replaced."""
        known = {name.lower(): shown for name, shown in self._names.items()}
        return self._pattern.sub(lambda found: known[found[0].lower()], text) if self._names else text

    def device(self, device: Device) -> dict[str, Any]:
        """Return what is no name of *device*."""
        fields = ("vendor", "model", "pci_device_id", "numa_node", "driver", "memory_bytes", "compute_units")
        return {
            "device": self._numbers[device.id],
            "kind": device.kind.value,
            "parent": self._numbers.get(device.parent or ""),
            "architecture": device.architecture,
            "links": len(device.links),
            **{name: getattr(device, name) for name in fields},
        }

    def result(self, result: ResultDocument) -> dict[str, Any]:
        """Return the figure with its conditions."""
        return {
            "workload": result.workload,
            "device": self._numbers[result.device],
            "dtype": result.dtype,
            "shape": result.shape,
            "metric": result.metric,
            "value": result.value,
            "unit": result.unit,
            "state": result.state,
            "seed": result.seed,
            "detail": self.text(result.detail),
            "conditions": {
                name: sorted(value) if name in _NAMES_ALONE else self._of(value)
                for name, value in result.conditions.items()
                if name not in _LEFT_OUT
            },
        }

    def sample(self, sample: Sample) -> dict[str, Any]:
        """Return the readings; of a text, which may be a number of the part, only its length."""
        return {
            "backend": sample.backend,
            "group": sample.group,
            "device": self._numbers.get(sample.device, "node"),
            "duration_seconds": sample.duration_seconds,
            "failed": None if sample.failure is None else self.text(sample.failure.detail),
            "readings": [
                {
                    "quantity": reading.quantity,
                    "part": str(reading.part),
                    "status": reading.status.value,
                    "value": _value(reading.quantity, reading.value),
                    "detail": self.text(reading.detail),
                }
                for reading in sample.readings
            ],
        }

    def _of(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(key): self._of(each) for key, each in value.items()}
        return [self._of(each) for each in value] if isinstance(value, (list, tuple)) else value


def _bare(uuid: str | None) -> tuple[str, ...]:
    """Return the ways in which torch and drivers write *uuid* without its prefix."""
    digits = (uuid or "").partition("-")[2]
    return (digits, digits.replace("-", "")) if digits else ()


def _value(quantity: str, value: object) -> object:
    declared = QUANTITIES.get(quantity)
    is_text = declared is None or declared.kind is QuantityKind.TEXT
    return f"text of {len(value)} characters" if is_text and isinstance(value, str) else value


def _software(document: BurnInDocument) -> dict[str, Any]:
    torch = {str(each.conditions["torch"]) for each in document.results if "torch" in each.conditions}
    return {
        "nodevet": __version__,
        "torch": sorted(torch),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "verdict": document.verdict,
    }


def _encoded(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1)
