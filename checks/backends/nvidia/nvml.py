"""NVML through nvidia-ml-py: loading, calls and errors.

A call fails in one of three ways. The library or driver is unusable, or the device is lost: BackendError. The device or
driver lacks the value: it is stored as unsupported and not read again until the next enumeration. Or the value could
not be read this time: denied, unavailable or error, and it is read again.

Values that exist both as a field and as a function are read as fields: one call returns them all. Their meaning is that
of nvml.h; the numbers in the tables of this package are its field identifiers.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nodevet.checks.backends.base import BackendError, imported
from nodevet.checks.backends.driver_errors import Asked, code_names, evidence, failed, of_kind
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.later import loaded_later
from nodevet.checks.core.model import FailureKind, Part, Reading, ReadingStatus, Scalar
from nodevet.checks.core.quantities import IMPLAUSIBLE
from nodevet.checks.core.wire import Progress
from nodevet.checks.system.exhaustion import next_step
from nodevet.checks.system.files import text_of

LIBRARY = "libnvidia-ml.so.1"
MOUNTS = "proc/self/mountinfo"
MOUNTED = "/libnvidia-ml.so"
DELETED = "//deleted"
"""Suffix that the kernel appends to the root of a mount whose file was deleted (dentry_path in fs/d_path.c)."""
REPLACED = (
    "the host replaced the library that this container was given, by an update of the driver: "
    "restart the container of nodevet"
)

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 1, 2, 3
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
LIB_RM_VERSION_MISMATCH, ARGUMENT_VERSION_MISMATCH, DEPRECATED, UNKNOWN = 18, 25, 26, 999
UNREADABLE = -1
"""Code of nodevet: the wrapper could not decode the answer."""

UNSUPPORTED = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
HANDLE_ALONE = "nvmlDeviceGetIndex"
"""Takes only a handle, no structure or choice: an invalid argument then means the handle."""
LIBRARY_NAME = "nvml"
"""Name of its rows in reference/driver_errors.csv, the codes that are evidence against a driver or a device."""
GONE = of_kind(
    LIBRARY_NAME,
    FailureKind.LOST,
    FailureKind.RESET_REQUIRED,
    FailureKind.NO_DRIVER,
    FailureKind.VERSION_MISMATCH,
    asked=Asked.ANY,
)
"""Codes that end the reading of a device, or of all devices, in any call."""
CODE_NAMES = code_names(LIBRARY_NAME)
"""Read at the start: a library that is refused descriptors reports it by a code, and no file can be opened then."""
DENIED = frozenset({4, 17})
REFUSED_TO_IT = frozenset({20, 23})
"""Codes for refused memory or file descriptors: any user can cause that."""
UNAVAILABLE = frozenset({7, TIMEOUT, 19, 21, 27, 29}) | REFUSED_TO_IT

NO_VALUE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""NVML's values of an unknown unsigned number (``NVML_VALUE_NOT_AVAILABLE``)."""


class Field(msgspec.Struct, frozen=True):
    """One field value: its identifier, its scope (a link or power scope), and the only accepted value type, if any."""

    identifier: int
    scope: int = 0
    value_type: int | None = None


class Call(msgspec.Struct, frozen=True):
    """One function of a device with its arguments."""

    symbol: str
    arguments: tuple[int, ...] = ()


class Item(msgspec.Struct, frozen=True):
    """One reading and its sources, of which the first that the device supports is used.

    ``convert`` converts the raw value to the quantity's unit, or to None if the device has no value. An ``optional``
    item that is not supported is omitted instead of reported: most devices lack its subject.
    """

    quantity: str
    part: Part
    sources: tuple[Field | Call, ...]
    convert: Callable[[Any], Scalar | None] = int
    optional: bool = False

    def source_at(self, number: int) -> Field | Call | None:
        """Return the source of that *number* from 0 on, or None behind the last one."""
        return self.sources[number] if number < len(self.sources) else None


class Target:
    """One device of the library: its handle, and its label in the progress line of a call."""

    def __init__(self, handle: Any, label: str) -> None:
        """Store *handle* under the name *label*."""
        self.handle = handle
        self.label = label
        self._texts: dict[str, str] = {}

    def text(self, symbol: str) -> str:
        """Return the text for a call of *symbol* on this device, made once per symbol."""
        known = self._texts.get(symbol)
        if known is None:
            known = self._texts[symbol] = f"{symbol} on {self.label}"
        return known


class Library:
    """The loaded library. Every call is first written to the progress line, because it may never return."""

    def __init__(self, module: Any, progress: Progress) -> None:
        """Take over the module ``pynvml``; nothing is called yet."""
        self.module = module
        self._progress = progress
        self._error: type[Exception] = module.NVMLError
        self._functions: dict[str, Callable[..., Any] | None] = {}

    def attempt(self, text: str, symbol: str, *arguments: Any) -> tuple[int, Any]:
        """Call *symbol* and return NVML's code and the result, which is None unless the code is SUCCESS."""
        function = self._function(symbol)
        if function is None:
            return FUNCTION_NOT_FOUND, None
        self._progress.call(text)
        try:
            done = attempt(partial(function, *arguments), let=(self._error,))
        except self._error as error:
            return error.value, None  # type: ignore[attr-defined]
        finally:
            self._progress.returned()
        # For instance bytes of a damaged InfoROM that are no text, which the wrapper decodes.
        return (UNREADABLE, None) if isinstance(done, Bug) else (SUCCESS, done)

    def on(self, target: Target, call: Call) -> tuple[int, Any]:
        """Call a function of a device. Raises BackendError when device, driver or library is lost."""
        code, value = self.attempt(target.text(call.symbol), call.symbol, target.handle, *call.arguments)
        if code:
            raise_if_gone(code, target.text(call.symbol))
            if code == INVALID_ARGUMENT and not call.arguments and self._is_unknown(target):
                raise BackendError(
                    FailureKind.LOST, f"{target.text(call.symbol)}: the driver no longer knows it", of_driver=True
                )
        return code, value

    def _is_unknown(self, target: Target) -> bool:
        """Return whether the driver rejects the handle itself; otherwise it rejected the structure of the call."""
        text = target.text(HANDLE_ALONE)
        code, _ = self.attempt(text, HANDLE_ALONE, target.handle)
        raise_if_gone(code, text)
        return code == INVALID_ARGUMENT

    def optional(self, target: Target, symbol: str, *arguments: int) -> Any:
        """Return the result of a function of a device, or None if there is none."""
        return self.on(target, Call(symbol, arguments))[1]

    def system(self, symbol: str, *arguments: Any) -> Any:
        """Return the result of a function of the library. Raises BackendError on any failure."""
        code, value = self.attempt(symbol, symbol, *arguments)
        if code:
            raise_if_gone(code, symbol)
            raise refused(code, symbol)
        return value

    def is_drained(self, address: str) -> bool:
        """Return whether ``nvidia-smi drain`` keeps new processes from the board at PCI *address*; False if refused.

        NVML does not list such a board to a process that starts later, and answers about it by its address alone.
        """
        place = self.module.nvmlPciInfo_t()
        domain, bus, slot = (int(number, 16) for number in address.partition(".")[0].split(":"))
        place.domain, place.bus, place.device = domain, bus, slot
        place.busId = f"{domain:08X}:{bus:02X}:{slot:02X}.0".encode()
        symbol = "nvmlDeviceQueryDrainState"
        code, state = self.attempt(f"{symbol} of PCI {address}", symbol, place)
        return code == SUCCESS and bool(state)

    def fields(self, target: Target, array: Any, count: int) -> int:
        """Fetch *count* field values into *array* and return NVML's code of the whole call."""
        symbol = "nvmlDeviceGetFieldValues"
        function = getattr(self.module.nvmlLib, symbol, None)
        if function is None:
            return FUNCTION_NOT_FOUND
        self._progress.call(target.text(symbol))
        try:
            return int(function(target.handle, count, array))
        finally:
            self._progress.returned()

    def _function(self, symbol: str) -> Callable[..., Any] | None:
        """Return the wrapper's function; None if this version of nvidia-ml-py lacks it."""
        if symbol not in self._functions:
            wrap = _STRUCTURED.get(symbol)
            self._functions[symbol] = wrap(self.module) if wrap else getattr(self.module, symbol, None)
        return self._functions[symbol]


def _memory_info(module: Any) -> Callable[..., Any]:
    """Call the second version: the first counts the driver's reserved memory as used."""
    return lambda handle: module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)


def _fabric_info(module: Any) -> Callable[..., Any]:
    def read(handle: Any) -> Any:
        info = module.c_nvmlGpuFabricInfo_v2_t()
        module.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    return read


def _sram_status(module: Any) -> Callable[..., Any]:
    def read(handle: Any) -> Any:
        status = module.c_nvmlEccSramErrorStatus_v1_t()
        module.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
        return status

    return read


def _retired_pages(module: Any) -> Callable[..., int]:
    """Return the number of retired pages of both causes: repeated corrected errors, and an uncorrectable error."""
    return lambda handle: sum(len(module.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))


_STRUCTURED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "nvmlDeviceGetMemoryInfo_v2": _memory_info,
    "nvmlDeviceGetGpuFabricInfoV": _fabric_info,
    "nvmlDeviceGetSramEccErrorStatus": _sram_status,
    "nvmlDeviceGetRetiredPages": _retired_pages,
}
"""Functions that need a versioned structure from the caller, or several calls."""


def describe(code: int) -> str:
    """Return NVML's *code* as text."""
    name = CODE_NAMES.get(code)
    if code < 0:
        return name or "unknown"
    return f"{name} (NVML code {code})" if name else f"NVML code {code}"


def raise_if_gone(code: int, text: str) -> None:
    """Raise BackendError if *code* means that the device, the driver or the library is lost."""
    if code in GONE:
        raise refused(code, text)
    if code == UNINITIALIZED:  # in this process alone: the next one starts the library again and gets the reason
        raise BackendError(FailureKind.READER, f"{text}: {describe(code)}")


def is_unsupported(code: int) -> bool:
    """Return whether *code* means that the value does not exist, on a device that the driver knows.

    A driver returns "invalid argument" for an unknown sensor, field, counter or structure.
    """
    return code in UNSUPPORTED or code == INVALID_ARGUMENT


def refused(code: int, text: str, asked: Asked = Asked.ANY) -> BackendError:
    """Return the error for *code* of the call *text* that all others depend on, of one device or of all."""
    return failed(LIBRARY_NAME, code, f"{text}: {describe(code)}", asked=asked, denied=DENIED)


def is_evidence(codes: Iterable[int]) -> bool:
    """Return whether one of *codes*, returned for one device, is evidence against it or its driver."""
    return any(evidence(LIBRARY_NAME, code, Asked.DEVICE) for code in codes)


def status_of(code: int) -> ReadingStatus:
    """Return the status of a reading whose call returned *code*."""
    if code in DENIED:
        return ReadingStatus.DENIED
    return ReadingStatus.UNAVAILABLE if code in UNAVAILABLE else ReadingStatus.ERROR


def may_answer_later(code: int) -> bool:
    """Return whether *code* says only that the value could not be read this time."""
    return code in UNAVAILABLE or code in (UNKNOWN, UNREADABLE)


# ---- Plans: the items read from one device in one round -----------------------------------------------------

_ENTRY = struct.Struct("=IIqqII8s")  # nvmlFieldValue_t: id, scope, timestamp, latency, value type, return, value
_VALUES = tuple(map(struct.Struct, ("=d", "=I", "=Q", "=Q", "=q", "=i", "=H")))
"""Decoders of the eight bytes of a value, by nvmlValueType_t. A signed number decoded as another type is wrong."""


class _Slot:
    """One item of a plan: its present source, and the reading made from the last raw value."""

    __slots__ = ("at", "item", "raw", "reading", "source", "why")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.at = 0
        self.source = item.source_at(0)
        self.raw: Any = None
        self.reading: Reading | None = None
        self.why = "not supported"

    def advance(self, code: int) -> None:
        """Go on to the next source, because this one is not supported."""
        self.at += 1
        self.source = self.item.source_at(self.at)
        self.raw = self.reading = None
        self.why = describe(code)

    def measured(self, raw: Any) -> Reading:
        """Return the reading of *raw*; the same object as last time if unchanged."""
        if self.reading is None or raw != self.raw:
            self.raw, self.reading = raw, self._reading_of(raw)
        return self.reading

    def _reading_of(self, raw: Any) -> Reading:
        if isinstance(raw, int) and raw in NO_VALUE:
            return self.bad(ReadingStatus.UNAVAILABLE, "the driver has no value")
        try:
            value = attempt(partial(self.item.convert, raw), let=(ValueError,))
        except ValueError as odd:  # the function that raises it knows every valid answer
            return self.bad(ReadingStatus.ERROR, f"{_words(self.source)}: its answer{IMPLAUSIBLE}{odd}")
        if isinstance(value, Bug):
            words = f"{_words(self.source)}: {raw!r} cannot be understood: {value.error}"
            return self.bad(ReadingStatus.ERROR, words)
        if value is None:
            return self.bad(ReadingStatus.UNSUPPORTED, "the device has none")
        return Reading(self.item.quantity, value, self.item.part)

    def failed(self, code: int) -> Reading:
        self.raw = self.reading = None
        return self.bad(status_of(code), f"{_words(self.source)}: {describe(code)}")

    def unsupported(self) -> Reading:
        if self.reading is None:
            self.reading = self.bad(ReadingStatus.UNSUPPORTED, self.why)
        return self.reading

    def bad(self, status: ReadingStatus, detail: str) -> Reading:
        return Reading(self.item.quantity, None, self.item.part, status, detail)


def _words(source: Field | Call | None) -> str:
    return f"field {source.identifier}" if isinstance(source, Field) else source.symbol if source else ""


class _Batch:
    """The fields of a plan in one array, which every round uses again."""

    def __init__(self, library: Library, slots: list[_Slot]) -> None:
        self.slots = slots
        self._library = library
        kind = library.module.c_nvmlFieldValue_t
        if ctypes.sizeof(kind) != _ENTRY.size:
            raise BackendError(
                FailureKind.ERROR, f"nvmlFieldValue_t has {ctypes.sizeof(kind)} bytes, not {_ENTRY.size}"
            )
        self._array = (kind * len(slots))()
        self._template = b"".join(_template(slot.source) for slot in slots)

    def read(self, target: Target) -> list[tuple[int, int, Any]]:
        """Return code, value type and raw value per slot."""
        # An entry that the library does not write must not show the value of the round before.
        ctypes.memmove(self._array, self._template, len(self._template))
        code = self._library.fields(target, self._array, len(self.slots))
        if code:
            raise_if_gone(code, target.text("nvmlDeviceGetFieldValues"))
            return [(code, 0, None)] * len(self.slots)
        outcomes = []
        for _id, _scope, _time, _latency, kind, result, raw in _ENTRY.iter_unpack(memoryview(self._array).cast("B")):
            if result:
                outcomes.append((result, kind, None))
            elif 0 <= kind < len(_VALUES):
                outcomes.append((SUCCESS, kind, _VALUES[kind].unpack_from(raw)[0]))
            else:
                outcomes.append((UNREADABLE, kind, None))
        return outcomes


def _template(source: Field | Call | None) -> bytes:
    if not isinstance(source, Field):
        raise TypeError(f"{source} is no field")
    return _ENTRY.pack(source.identifier, source.scope, 0, 0, 0, UNKNOWN, bytes(8))


class Plan:
    """Reads the same items of one device in every round, and learns which of their sources it supports."""

    def __init__(self, library: Library, target: Target, items: Iterable[Item]) -> None:
        """Prepare to read *items* of *target*; nothing is called yet."""
        self._library = library
        self._target = target
        self._slots = [_Slot(item) for item in items]
        self._batch: _Batch | None = None
        self.codes: set[int] = set()
        """The codes of the calls of the last round."""

    def read(self) -> list[Reading]:
        """Return one reading per item. Raises BackendError when the device is lost."""
        self.codes.clear()
        fetched = self._read_fields()
        called: dict[Call, tuple[int, Any]] = {}
        readings = []
        for slot in self._slots:
            reading = fetched.get(slot) or self._call(slot, called)
            if reading is not None:
                readings.append(reading)
        return readings

    def _read_fields(self) -> dict[_Slot, Reading]:
        """Return the readings of fields; repeats until no field is found to be unsupported."""
        while True:
            if self._batch is None:
                self._batch = _Batch(self._library, [slot for slot in self._slots if isinstance(slot.source, Field)])
            if not self._batch.slots:
                return {}
            fetched = {}
            for slot, (code, kind, raw) in zip(self._batch.slots, self._batch.read(self._target), strict=True):
                if code == SUCCESS and _accepts(slot.source, kind):
                    fetched[slot] = slot.measured(raw)
                    continue
                self.codes.add(code)
                if code:
                    raise_if_gone(code, f"{_words(slot.source)} of {self._target.label}")
                if code == SUCCESS or is_unsupported(code):
                    slot.advance(code or NOT_SUPPORTED)
                    self._batch = None
                else:
                    fetched[slot] = slot.failed(code)
            if self._batch is not None:
                return fetched

    def _call(self, slot: _Slot, called: dict[Call, tuple[int, Any]]) -> Reading | None:
        """Return the reading of a function; one result serves every item that shares the call."""
        while isinstance(source := slot.source, Call):
            answer = called.get(source)
            if answer is None:
                answer = called[source] = self._library.on(self._target, source)
                self.codes.add(answer[0])
            code, raw = answer
            if not code:
                return slot.measured(raw)
            if not is_unsupported(code):
                return slot.failed(code)
            slot.advance(code)
        return None if slot.item.optional else slot.unsupported()


def _accepts(source: Field | Call | None, kind: int) -> bool:
    wanted = source.value_type if isinstance(source, Field) else None
    return wanted is None or wanted == kind


# ---- Loading --------------------------------------------------------------------------------------------------


def why_not_loaded(library: str) -> str:
    """Return why the driver's *library* cannot be loaded: the wrapper reports every cause as "not found"."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        if "cannot open shared object file: No such file" not in str(error):
            step = next_step(str(error), "install that of the NVIDIA driver anew")
            return f"{library} is there and cannot be loaded ({error}): {step}"
    return f"{library} was not found: install the NVIDIA driver, or mount its libraries"


def load(progress: Progress, root: str) -> Library:
    """Load nvidia-ml-py and the driver's library. Raises BackendError with the missing part and the remedy."""
    library = Library(imported("nvidia-ml-py", _import), progress)
    code, _ = library.attempt("nvmlInit", "nvmlInit")
    if code == SUCCESS:
        return library
    if code == LIBRARY_NOT_FOUND:
        raise BackendError(FailureKind.NO_LIBRARY, why_not_loaded(LIBRARY))
    if code == DRIVER_NOT_LOADED:
        raise BackendError(
            FailureKind.NO_DRIVER,
            "the NVIDIA kernel driver is not loaded: modprobe nvidia, then read the kernel log",
            of_driver=True,
        )
    if code == LIB_RM_VERSION_MISMATCH:
        if is_deleted_mount(text_of(Path(root, MOUNTS))):
            raise BackendError(FailureKind.ERROR, f"nvmlInit: {describe(code)}: {REPLACED}")
        raise BackendError(FailureKind.VERSION_MISMATCH, _mismatch(library, root), of_driver=True)
    raise refused(code, "nvmlInit")


def is_deleted_mount(mounts: str) -> bool:
    """Return whether *mounts*, a mountinfo (proc(5)), has a file of the library that was deleted on the host.

    A container gets the host's libraries as single mounted files. A driver update deletes them on the host, and the
    container keeps the old ones.
    """
    fields = (line.split(" ") for line in mounts.splitlines())
    return any(len(line) > 4 and line[3].endswith(DELETED) and MOUNTED in line[4] for line in fields)


def _import() -> Any:
    try:
        with loaded_later("shutil", "subprocess", "tempfile"):  # what ctypes.util is made for elsewhere: 1 MiB
            import pynvml
    except ImportError as error:
        if error.name not in (None, "pynvml"):
            raise
        raise BackendError(FailureKind.NO_LIBRARY, "nvidia-ml-py is missing: pip install nvidia-ml-py") from error
    if not hasattr(pynvml, "nvmlInit"):
        raise BackendError(FailureKind.READER, "nvidia-ml-py is there and holds nothing: install it anew")
    if not hasattr(pynvml, "NVML_FI_MAX"):
        raise BackendError(
            FailureKind.NO_LIBRARY,
            "module pynvml is of the retired distribution pynvml: pip uninstall pynvml, then pip install nvidia-ml-py",
        )
    return pynvml


def _mismatch(library: Library, root: str) -> str:
    """Return both versions as text: the library reports its own even when the driver refuses it."""
    code, own = library.attempt("nvmlSystemGetNVMLVersion", "nvmlSystemGetNVMLVersion")
    loaded = text_of(Path(root, "sys/module/nvidia/version")).strip()
    return (
        f"NVML {'of unknown version' if code else own} does not match the loaded kernel module"
        f"{f' {loaded}' if loaded else ', whose version is unknown'}: the driver was "
        "upgraded while it was loaded; reboot or reload the nvidia modules"
    )
