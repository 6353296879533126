"""Profiles of simulated nodes: the devices of a machine, and their readings at rest and under load.

A profile is a TOML file in reference/profiles; every table of readings names its source. The rows are data: each
describes one quantity of one part between rest (level 0) and full load (level 1).
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import ModelError, ReferenceDataError, UsageError
from nodevet.checks.core.model import Scalar
from nodevet.checks.core.parts import Part, PartKind
from nodevet.checks.core.quantities import QUANTITIES

SLOWDOWNS = ("temperature_slowdown_celsius", "temperature_maximum_celsius", "temperature_shutdown_celsius")
"""Quantities with the temperature at which a device slows itself down: the first that it reports counts."""

FOLDER = Path(__file__).with_name("profiles")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The behaviour of one quantity of one part. Exactly one of the four forms is given.

    ``value`` (with ``busy``: another value under load); ``idle`` and ``load`` with ``noise`` around them; ``start``
    with ``rate_idle`` and ``rate_load`` per second, for counters; ``unsupported`` with the reason. ``ports`` repeats
    the row for parts numbered from 0; ``whole`` rounds to integers, as interfaces with whole units do.
    """

    quantity: str
    part: str = "device"
    ports: int = 0
    value: Scalar | None = None
    busy: Scalar | None = None
    idle: float | None = None
    load: float | None = None
    noise: float = 0.0
    start: float | None = None
    rate_idle: float = 0.0
    rate_load: float = 0.0
    unsupported: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        """Refuse a row with no form or several, or with an unknown quantity or part."""
        ways = [self.value is not None, self.idle is not None, self.start is not None, bool(self.unsupported)]
        if sum(ways) != 1 or (self.idle is None) is not (self.load is None):
            raise ModelError(f"row {self.quantity}: give one of value, idle with load, start, unsupported")
        if self.quantity not in QUANTITIES:
            raise ModelError(f"row {self.quantity}: no such quantity")
        if part_of(self.part).kind is not QUANTITIES[self.quantity].part:
            raise ModelError(f"row {self.quantity}: is about a {QUANTITIES[self.quantity].part.value}, not {self.part}")

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts that the row describes."""
        part = part_of(self.part)
        if not self.ports:
            return (part,)
        return tuple(msgspec.structs.replace(part, index=port) for port in range(self.ports))


class Readings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows of one kind of device, by group."""

    source: str
    fast: tuple[Row, ...] = ()
    slow: tuple[Row, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return the rows of both groups."""
        return (*self.fast, *self.slow)


class NodeProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine itself."""

    vendor: str
    model: str
    bios: str
    kernel: str
    memory_bytes: int
    readings: Readings
    memory_readings: Readings


class SocketProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor sockets: ``count`` identical ones, the first on NUMA node 0."""

    count: int
    vendor: str
    model: str
    cores: int
    maximum_clock_hertz: int
    readings: Readings


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slot of one accelerator."""

    pci: str
    numa: int


class AcceleratorProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The accelerators: one per slot, all of one model.

    ``peer``: links end at a ``switch``, or where the library does not report it (``unknown``). ``first_minor`` is the
    number of the first device node. ``id`` is the device id in the vendor's tools and ``uuid`` the name by which a
    device is selected; in both ``{uuid}`` stands for a UUID and ``{chip}`` for sixteen digits.
    """

    vendor: str
    model: str
    id: str
    uuid: str
    architecture: str
    pci_device_id: str
    driver: str
    firmware: dict[str, str]
    memory_bytes: int
    compute_units: int
    maximum_clock_hertz: int
    links: int
    peer: str
    first_minor: int
    link_generation: str
    slots: tuple[Slot, ...]
    readings: Readings


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of a simulated probe on each device: the median rate, its spread and the verified products."""

    dtype: str
    tflops: float
    peak_tflops: float | None = None
    shape: tuple[int, int, int]
    products: int
    seconds: float
    source: str


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated node."""

    summary: str
    node: NodeProfile
    sockets: SocketProfile
    probe: Probe
    accelerators: AcceleratorProfile | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the backends that read such a node."""
        return ("host", self.accelerators.vendor) if self.accelerators else ("host",)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names of all devices in a scenario: slots of accelerators by number, the rest by id."""
        slots = range(len(self.accelerators.slots)) if self.accelerators else ()
        sockets = (f"cpu-{index}" for index in range(self.sockets.count))
        return (*map(str, slots), *sockets, "memory", "node")

    def subject(self, target: str) -> str:
        """Return the name of *target* in the tables of faults: the vendor of an accelerator, or ``cpu`` and so on."""
        if target.isdigit():
            return self.accelerators.vendor if self.accelerators else ""
        return target.split("-")[0]

    def readings(self, target: str) -> Readings:
        """Return the rows of the device *target* of a scenario."""
        if target.isdigit() and self.accelerators:
            return self.accelerators.readings
        return {"cpu": self.sockets.readings, "memory": self.node.memory_readings}.get(
            self.subject(target), self.node.readings
        )

    def slowdown_celsius(self, target: str, part: Part) -> float | None:
        """Return the temperature at which *target* slows down because of *part*, as the device reports it."""
        limits = {
            row.quantity: float(row.value)
            for row in self.readings(target).rows
            if part in row.parts and isinstance(row.value, (int, float))
        }
        return next((limits[name] for name in SLOWDOWNS if name in limits), None)


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@functools.cache
def load_profile(name: str) -> Profile:
    """Return the profile *name*. Raises UsageError for an unknown name, ReferenceDataError for a broken file."""
    if name not in profile_names():
        raise UsageError(f"--simulate: unknown profile {name!r}; profiles: {', '.join(profile_names())}")
    path = FOLDER / f"{name}.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Profile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, ModelError) as error:
        raise ReferenceDataError(f"{path.name}: {error}; reinstall nodevet") from error


def part_of(words: str) -> Part:
    """Return the part in display form *words*: ``link 17``, ``sensor core``. Raises ModelError."""
    kind, *rest = words.split() or ("",)
    index = int(rest.pop()) if rest and rest[-1].isdecimal() else None
    try:
        return Part(PartKind(kind), " ".join(rest), index)
    except ValueError as error:
        kinds = ", ".join(entry.value for entry in PartKind)
        raise ModelError(f"part {words!r}: {error}; a part is a kind ({kinds}), its name and its number") from error
