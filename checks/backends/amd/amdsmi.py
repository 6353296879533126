"""AMD SMI through its Python wrapper: loading, calls and errors.

The wrapper is made for one release of the library and binds every symbol on import, so a wrapper of another ROCm fails
there. Its answers are dictionaries; a number that the device does not have is the text ``N/A`` or,
where the wrapper does not check, the largest number of its type.

A call fails in one of three ways. The library or driver is unusable: BackendError. The device or driver lacks the
value: it is stored as unsupported and not read again until the next enumeration. Or the value could not be read this
time: denied, unavailable or error, and it is read again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from nodevet.checks.backends.base import BackendError, imported
from nodevet.checks.backends.driver_errors import Asked, code_names, evidence, failed, of_kind
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import FailureKind, Part, Reading, ReadingStatus, Scalar
from nodevet.checks.core.quantities import IMPLAUSIBLE
from nodevet.checks.core.wire import Progress
from nodevet.checks.system.exhaustion import next_step

SUCCESS, INVALID, NOT_SUPPORTED, NOT_YET_IMPLEMENTED = 0, 1, 2, 3
NOT_INITIALIZED, DRIVER_NOT_LOADED = 32, 34
NO_FUNCTION, UNREADABLE, LEFT_OUT = -1, -2, -3
"""Codes of nodevet: this wrapper or library has no such function; the wrapper could not decode the answer; the call
crashed an earlier reader because of files that users left (reference/calls_of_users.csv)."""

UNSUPPORTED = frozenset({NO_FUNCTION, NOT_SUPPORTED, NOT_YET_IMPLEMENTED})
DENIED = frozenset({10})
UNAVAILABLE = frozenset({LEFT_OUT, 8, 9, 11, 15, 30, 40})
LIBRARY_NAME = "amdsmi"
"""Name of its rows in reference/driver_errors.csv, the codes that are evidence against a driver or a device."""
GONE = of_kind(LIBRARY_NAME, FailureKind.LOST)
"""Codes of calls on a device that fell off its bus. A single one may also mean a missing file."""
CODE_NAMES = code_names(LIBRARY_NAME)
"""Read at the start: a library that is refused descriptors reports it by a code, and no file can be opened then."""

NO_NUMBER = "N/A"
NO_VALUE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
NO_VALUE_16 = NO_VALUE | {0xFFFF}
"""The largest numbers of their types: the library returns them for values that the device does not have."""

WRAPPER_FOLDER = "share/amd_smi"
OWN_LOCKS = "RSMI_MUTEX_THREAD_ONLY"
"""Without this variable AMD SMI locks each GPU by a file in /dev/shm that every user may lock and write (mode 0777):
a user who holds or damages it hangs or ends every other program in its next call (ROCm amdsmi, third_party
shared_mutex.cc). With it a process has its own locks; RCCL sets it too."""

_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_NO_SUCH = re.compile(r"undefined symbol: |has no attribute 'amdsmi_")


class Call(msgspec.Struct, frozen=True):
    """One function of a device.

    ``arguments`` name members of the wrapper's enumerations, such as ``AmdSmiClkType.GFX``. ``take`` converts
    the answer to the quantity's unit, or to None where the device has no value.
    """

    symbol: str
    arguments: tuple[str, ...] = ()
    take: Callable[[Any], Scalar | None] = int


class Item(msgspec.Struct, frozen=True):
    """One reading and its sources, of which the first that the device supports is used.

    An ``optional`` item that is not supported is omitted instead of reported: most devices lack its subject.
    """

    quantity: str
    part: Part
    sources: tuple[Call, ...]
    optional: bool = False


class Target:
    """One device of the library: its handle, and its label in the progress line of a call."""

    def __init__(self, handle: Any, label: str) -> None:
        """Store *handle* under the name *label*."""
        self.handle = handle
        self.label = label

    def text(self, symbol: str) -> str:
        """Return the text for a call of *symbol* on this device."""
        return f"{symbol} on {self.label}"


class Library:
    """The loaded wrapper. Every call is first written to the progress line, because it may never return."""

    def __init__(self, module: Any, progress: Progress) -> None:
        """Take over the module ``amdsmi``; nothing is called yet."""
        self.module = module
        self.left_out: frozenset[str] = frozenset()
        self.failures = 0
        """Number of ``optional`` calls without an answer that a later call may return."""
        self._progress = progress
        self._refused: type[Exception] = module.AmdSmiLibraryException

    def attempt(
        self, text: str, symbol: str, *arguments: Any, expected: tuple[type[Exception], ...] = ()
    ) -> tuple[int, Any]:
        """Call *symbol* and return AMD SMI's code and the answer, which is None unless the code is SUCCESS.

        Any other exception of the wrapper costs only this answer, except those in *expected*.
        """
        function = getattr(self.module, symbol, None)
        if function is None:
            return NO_FUNCTION, None
        if symbol in self.left_out:
            return LEFT_OUT, None
        self._progress.call(text)
        try:
            done = attempt(partial(function, *arguments), let=(self._refused, AttributeError, *expected))
        except self._refused as error:
            code = attempt(partial(_code_of, error))
            return UNREADABLE if isinstance(code, Bug) else code, None
        except AttributeError as error:  # wrappers since 7.1 look symbols up at the call
            return NO_FUNCTION if _NO_SUCH.search(str(error)) else UNREADABLE, None
        finally:
            self._progress.returned()
        # Invalid text, numbers that the wrapper's tables lack, or a file that it cannot read.
        return (UNREADABLE, None) if isinstance(done, Bug) else (SUCCESS, done)

    def on(self, target: Target, symbol: str, *names: str) -> tuple[int, Any]:
        """Call a function of a device with members of enumerations. Raises BackendError when the driver is gone."""
        members = [self.member(name) for name in names]
        if None in members:
            return NO_FUNCTION, None
        code, value = self.attempt(target.text(symbol), symbol, target.handle, *members)
        raise_if_gone(code, target.text(symbol))
        return code, value

    def optional(self, target: Target, symbol: str, *names: str) -> Any:
        """Return the answer of a function of a device, or None where there is none."""
        code, answer = self.on(target, symbol, *names)
        self.failures += code != SUCCESS and code not in UNSUPPORTED | DENIED
        return answer

    def member(self, name: str) -> Any:
        """Return the member *name* of the wrapper's enumerations; None where this release has none."""
        kind, _, member = name.partition(".")
        return getattr(getattr(self.module, kind, None), member, None)


def _code_of(refused: Any) -> int:
    """Return the code of an exception of the wrapper; exceptions of its method or of the conversion pass."""
    return int(refused.get_error_code())


def describe(code: int) -> str:
    """Return AMD SMI's *code* as text."""
    name = CODE_NAMES.get(code, "unknown error")
    return name if code < 0 else f"{name} (AMD SMI code {code})"


def raise_if_gone(code: int, text: str) -> None:
    """Raise BackendError where *code* means that the driver or the library is gone."""
    if code == DRIVER_NOT_LOADED:
        raise refused(code, text)
    if code == NOT_INITIALIZED:  # in this process alone: the next one starts the library again and gets the reason
        raise BackendError(FailureKind.READER, f"{text}: {describe(code)}")


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


def number(value: Any, none: frozenset[int] = NO_VALUE) -> int | float | None:
    """Return *value* as a number, or None where it is ``N/A`` or one of the numbers for no value.

    Raises ValueError or TypeError for any other value.
    """
    if value is None or value == NO_NUMBER or (isinstance(value, int) and value in none):
        return None
    if isinstance(value, bool | int | float):
        return value
    return int(value, 0)


# ---- Plans: the items read from one device in one round -----------------------------------------------------


class _Slot:
    """One item of a plan: its present source, and whether the item was ever measured."""

    __slots__ = ("at", "item", "was_measured", "why")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.at = 0
        self.was_measured = False
        self.why = "not supported"

    @property
    def source(self) -> Call | None:
        return self.item.sources[self.at] if self.at < len(self.item.sources) else None

    def taken(self, source: Call, answer: Any) -> Reading | None:
        """Return the reading of *answer*; None where it has no such value, and the next source is to be tried."""
        try:
            value = attempt(partial(source.take, answer), let=(ValueError,))
        except ValueError as odd:  # the function that raises it knows every valid answer
            return self.bad(ReadingStatus.ERROR, f"{source.symbol}: its answer{IMPLAUSIBLE}{odd}")
        if isinstance(value, Bug):
            return self.bad(ReadingStatus.ERROR, f"{source.symbol}: cannot be understood: {value.error}")
        if value is not None:
            self.was_measured = True
            return Reading(self.item.quantity, value, self.item.part)
        if self.was_measured:
            return self.bad(ReadingStatus.UNAVAILABLE, f"{source.symbol}: the device has no value now")
        self.advance("the device has none")
        return None

    def advance(self, why: str) -> None:
        self.at += 1
        self.why = why

    def bad(self, status: ReadingStatus, detail: str) -> Reading:
        return Reading(self.item.quantity, None, self.item.part, status, detail)


class Plan:
    """Reads the same items of one device in every round, and learns which of their sources it supports."""

    def __init__(self, library: Library, target: Target, items: Iterable[Item]) -> None:
        """Prepare to read *items* of *target*; nothing is called yet."""
        self._library = library
        self._target = target
        self._slots = [_Slot(item) for item in items]
        self.codes: set[int] = set()
        """The codes of the calls of the last round."""

    def read(self) -> list[Reading]:
        """Return one reading per item. Raises BackendError when the driver is gone."""
        self.codes.clear()
        called: dict[tuple[str, tuple[str, ...]], tuple[int, Any]] = {}
        readings = (self._read(slot, called) for slot in self._slots)
        return [reading for reading in readings if reading is not None]

    def unread(self, status: ReadingStatus, detail: str) -> list[Reading]:
        """Return a reading without value for every item that the device may have; nothing is called."""
        return [slot.bad(status, detail) for slot in self._slots if slot.source is not None and not slot.item.optional]

    def _read(self, slot: _Slot, called: dict[tuple[str, tuple[str, ...]], tuple[int, Any]]) -> Reading | None:
        """Return the reading of *slot*; one answer serves all items that share the call."""
        while (source := slot.source) is not None:
            key = (source.symbol, source.arguments)
            if key not in called:
                called[key] = self._library.on(self._target, source.symbol, *source.arguments)
                self.codes.add(called[key][0])
            code, answer = called[key]
            if code in UNSUPPORTED:
                slot.advance(describe(code))
            elif code:
                return slot.bad(status_of(code), f"{source.symbol}: {describe(code)}")
            elif (reading := slot.taken(source, answer)) is not None:
                return reading
        return None if slot.item.optional else slot.bad(ReadingStatus.UNSUPPORTED, slot.why)


# ---- Loading --------------------------------------------------------------------------------------------------


def load(progress: Progress) -> Library:
    """Import the wrapper and start the library. Raises BackendError with the missing part and the remedy."""
    progress.write("import amdsmi")
    os.environ[OWN_LOCKS] = "1"
    module = _import()
    library = Library(module, progress)
    try:
        init = module.AmdSmiInitFlags.INIT_AMD_GPUS
        code, _ = library.attempt("amdsmi_init", "amdsmi_init", init, expected=(OSError,))
    except OSError as error:  # wrappers since 7.1 load the library at the first call
        raise _no_library(str(error)) from error
    if code == SUCCESS:
        return library
    if code == DRIVER_NOT_LOADED:
        raise BackendError(
            FailureKind.NO_DRIVER,
            "the AMD kernel driver is not loaded: modprobe amdgpu, then read the kernel log",
            of_driver=True,
        )
    raise refused(code, "amdsmi_init")


def rocm_folder() -> Path:
    """Return the installation folder of ROCm, found as its own tools find it."""
    return Path(os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm")


def _import() -> Any:
    """Return ROCm's own wrapper, else the one installed for Python."""
    shipped = rocm_folder() / WRAPPER_FOLDER
    if (shipped / "amdsmi" / "__init__.py").is_file():
        sys.path.insert(0, str(shipped))
    os.environ.setdefault("ROCM_PATH", str(rocm_folder()))  # wrappers before 6.2 fail with KeyError without it
    printed = io.StringIO()  # the wrapper prints on standard output which library it did not find
    try:
        with contextlib.redirect_stdout(printed):
            return imported("the wrapper amdsmi", _wrapper, let=(ImportError, OSError, KeyError, AttributeError))
    except ImportError as error:
        raise BackendError(
            FailureKind.NO_LIBRARY,
            f"the wrapper amdsmi cannot be imported ({error}): install ROCm's amd-smi-lib, which brings {shipped}, "
            "or pip install amdsmi of the same release",
        ) from error
    except (OSError, KeyError) as error:
        said = printed.getvalue().strip().splitlines()[:1] or [str(error)]
        raise _no_library(said[0]) from error
    except AttributeError as error:
        raise BackendError(FailureKind.VERSION_MISMATCH, _mismatch(str(error))) from error


def _wrapper() -> Any:
    import amdsmi

    return amdsmi


def _no_library(why: str) -> BackendError:
    step = next_step(why, "install ROCm's amd-smi-lib")
    return BackendError(FailureKind.NO_LIBRARY, f"libamd_smi.so cannot be loaded ({why}): {step}")


def _mismatch(error: str) -> str:
    """Return what the library lacks, and both versions as far as files state them: the wrapper did not run."""
    missing = _SYMBOL.search(error)
    return (
        f"wrapper amdsmi {_wrapper_version()} does not fit the library of ROCm {_rocm_version()}, "
        f"which lacks {missing.group(1) if missing else error}: "
        f"install the wrapper that ROCm ships: {rocm_folder() / WRAPPER_FOLDER}"
    )


def _wrapper_version() -> str:
    version = getattr(sys.modules.get("amdsmi._version"), "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return metadata.version("amdsmi")
    except metadata.PackageNotFoundError:
        return "unknown"


def _rocm_version() -> str:
    """Return ROCm's own version text, else the number in the file name of the library."""
    folder = rocm_folder()
    try:
        return (folder / ".info" / "version").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return (folder / "lib" / "libamd_smi.so").resolve().name.partition(".so.")[2] or "unknown"
