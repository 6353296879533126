"""AMD SMI through the Python wrapper of the same name: how it is loaded, called and how it says no.

The wrapper is made for one release of the library and binds every symbol when it is imported, so a wrapper of another
ROCm fails there. Its answers are dictionaries; a number that the device does not have comes as the word ``N/A`` or,
where the wrapper forgot to look, as the largest number of its type.

A call fails in one of three ways. The library or driver is unusable: BackendError. The device or driver lacks the
value: it is remembered as unsupported and not asked for again until the next enumeration. Or the value could not be
had this time: denied, unavailable or error, and it is asked for again.
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
from nodevet.checks.backends.driver_errors import Asked, evidence, failed, of_kind
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import FailureKind, Part, Reading, ReadingStatus, Scalar
from nodevet.checks.core.quantities import IMPLAUSIBLE
from nodevet.checks.core.wire import Progress
from nodevet.checks.system.exhaustion import next_step

SUCCESS, INVALID, NOT_SUPPORTED, NOT_YET_IMPLEMENTED = 0, 1, 2, 3
NOT_INITIALIZED, DRIVER_NOT_LOADED = 32, 34
NO_FUNCTION, UNREADABLE, LEFT_OUT = -1, -2, -3
"""Not of the library: this wrapper or library has no such function; the wrapper could not take the answer apart; it
brought an earlier reader down by what users left about (reference/calls_of_users.csv)."""

CODE_NAMES = {
    NO_FUNCTION: "this release has no such function",
    UNREADABLE: "the wrapper could not read the answer",
    LEFT_OUT: "skipped for a time, because the action of a user ended the collector in this call: see the agent's log",
    INVALID: "invalid parameter",
    NOT_SUPPORTED: "not supported",
    NOT_YET_IMPLEMENTED: "not implemented yet",
    4: "a library could not be loaded",
    6: "libdrm reports an error",
    7: "the call failed",
    8: "timeout",
    9: "try again",
    10: "no permission",
    11: "interrupted",
    12: "input or output error",
    14: "a file could not be opened",
    15: "the library was refused memory or resources",
    18: "the library could open no device, or not build its picture of them",
    30: "the device is busy",
    31: "not found",
    NOT_INITIALIZED: "the library was shut down",
    DRIVER_NOT_LOADED: "the driver is not loaded",
    40: "no data",
    42: "unexpected size",
    43: "unexpected data",
    54: "the kernel driver could not be restarted",
    56: "the EEPROM is corrupted",
}

UNSUPPORTED = frozenset({NO_FUNCTION, NOT_SUPPORTED, NOT_YET_IMPLEMENTED})
DENIED = frozenset({10})
UNAVAILABLE = frozenset({LEFT_OUT, 8, 9, 11, 15, 30, 40})
LIBRARY_NAME = "amdsmi"
"""Its rows of reference/driver_errors.csv, which lists the codes that are evidence against a driver or a device."""
GONE = of_kind(LIBRARY_NAME, FailureKind.LOST)
"""What calls on a device that fell off its bus end with. One alone may also mean that a single file is missing."""

NO_NUMBER = "N/A"
NO_VALUE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
NO_VALUE_16 = NO_VALUE | {0xFFFF}
"""The largest numbers of their types: the library fills with them what the device does not have."""

WRAPPER_FOLDER = "share/amd_smi"
OWN_LOCKS = "RSMI_MUTEX_THREAD_ONLY"
"""Without this variable AMD SMI locks each board by a file in /dev/shm that every user may lock and write (mode 0777):
who holds or damages it hangs or ends every other program in its next call (ROCm amdsmi, third_party shared_mutex.cc).
With it a process has locks of its own; RCCL sets it too."""

_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_NO_SUCH = re.compile(r"undefined symbol: |has no attribute 'amdsmi_")


class Call(msgspec.Struct, frozen=True):
    """One function of a device.

    ``arguments`` name members of the wrapper's enumerations, such as ``AmdSmiClkType.GFX``. ``take`` turns
    the answer into the quantity's unit, or into None where the device says that it has none.
    """

    symbol: str
    arguments: tuple[str, ...] = ()
    take: Callable[[Any], Scalar | None] = int


class Item(msgspec.Struct, frozen=True):
    """One reading and where it comes from: the first of *sources* that the device supports.

    An ``optional`` item that is not supported is left out instead of reported: most devices lack what it stands for.
    """

    quantity: str
    part: Part
    sources: tuple[Call, ...]
    optional: bool = False


class Target:
    """One device as the library sees it: its handle, and the words that name it while a call is under way."""

    def __init__(self, handle: Any, label: str) -> None:
        """Keep *handle* under the name *label*."""
        self.handle = handle
        self.label = label

    def text(self, symbol: str) -> str:
        """Return what is called on what."""
        return f"{symbol} on {self.label}"


class Library:
    """The loaded wrapper. Every call notes first what it is about to do, because it may never return."""

    def __init__(self, module: Any, progress: Progress) -> None:
        """Take over the module ``amdsmi``; nothing is called yet."""
        self.module = module
        self.left_out: frozenset[str] = frozenset()
        self.failures = 0
        """How many questions of ``optional`` found no answer that another time may bring."""
        self._progress = progress
        self._refused: type[Exception] = module.AmdSmiLibraryException

    def attempt(
        self, text: str, symbol: str, *arguments: Any, expected: tuple[type[Exception], ...] = ()
    ) -> tuple[int, Any]:
        """Call *symbol* and return AMD SMI's code and the answer, which is None unless the code is SUCCESS.

        Whatever else the wrapper raises costs this answer alone, except what is *expected*.
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
        except AttributeError as error:  # wrappers since 7.1 look symbols up when they are called
            return NO_FUNCTION if _NO_SUCH.search(str(error)) else UNREADABLE, None
        finally:
            self._progress.returned()
        # Text that is none, numbers that the wrapper's tables lack, or a file that it cannot read.
        return (UNREADABLE, None) if isinstance(done, Bug) else (SUCCESS, done)

    def on(self, target: Target, symbol: str, *names: str) -> tuple[int, Any]:
        """Call a function of a device with members of enumerations; raise BackendError when the driver is gone."""
        members = [self.member(name) for name in names]
        if None in members:
            return NO_FUNCTION, None
        code, value = self.attempt(target.text(symbol), symbol, target.handle, *members)
        raise_if_gone(code, target.text(symbol))
        return code, value

    def optional(self, target: Target, symbol: str, *names: str) -> Any:
        """Return the answer of a function of a device, or None where there is none to be had."""
        code, answer = self.on(target, symbol, *names)
        self.failures += code != SUCCESS and code not in UNSUPPORTED | DENIED
        return answer

    def member(self, name: str) -> Any:
        """Return the member of the wrapper's enumeration that *name* means; None where this release has none."""
        kind, _, member = name.partition(".")
        return getattr(getattr(self.module, kind, None), member, None)


def _code_of(refused: Any) -> int:
    """Return the code of an exception of the wrapper; raise what it or that which it carries for one raises."""
    return int(refused.get_error_code())


def describe(code: int) -> str:
    """Return AMD SMI's *code* in words."""
    name = CODE_NAMES.get(code, "unknown error")
    return name if code < 0 else f"{name} (AMD SMI code {code})"


def raise_if_gone(code: int, text: str) -> None:
    """Raise BackendError where *code* says that the driver or the library is gone."""
    if code == DRIVER_NOT_LOADED:
        raise refused(code, text)
    if code == NOT_INITIALIZED:  # in this process alone: the next one starts the library anew, and hears why
        raise BackendError(FailureKind.READER, f"{text}: {describe(code)}")


def refused(code: int, text: str, asked: Asked = Asked.ANY) -> BackendError:
    """Return what a call on which everything else depends, *text*, is refused with, of a device or of all."""
    return failed(LIBRARY_NAME, code, f"{text}: {describe(code)}", asked=asked, denied=DENIED)


def is_evidence(codes: Iterable[int]) -> bool:
    """Return whether one of *codes*, with which questions about one device ended, speaks against it or its driver."""
    return any(evidence(LIBRARY_NAME, code, Asked.DEVICE) for code in codes)


def status_of(code: int) -> ReadingStatus:
    """Return the status of a reading whose call ended with *code*."""
    if code in DENIED:
        return ReadingStatus.DENIED
    return ReadingStatus.UNAVAILABLE if code in UNAVAILABLE else ReadingStatus.ERROR


def number(value: Any, none: frozenset[int] = NO_VALUE) -> int | float | None:
    """Return *value* as a number, or None where it is the word or one of the numbers that stand for nothing.

    Raises ValueError or TypeError for what is neither.
    """
    if value is None or value == NO_NUMBER or (isinstance(value, int) and value in none):
        return None
    if isinstance(value, bool | int | float):
        return value
    return int(value, 0)


# ---- Plans: what is read of one device in one round ---------------------------------------------------------


class _Slot:
    """One item of a plan: the source that is tried now, and whether the item was ever measured."""

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
        """Return the reading of *answer*; None where there is no such value, and the next source is to be tried."""
        try:
            value = attempt(partial(source.take, answer), let=(ValueError,))
        except ValueError as odd:  # whoever raises it knows each answer that means something
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
    """Reads the same items of one device round after round, and learns which of their sources exist there."""

    def __init__(self, library: Library, target: Target, items: Iterable[Item]) -> None:
        """Prepare to read *items* of *target*; nothing is called yet."""
        self._library = library
        self._target = target
        self._slots = [_Slot(item) for item in items]
        self.codes: set[int] = set()
        """What the calls of the last round ended with."""

    def read(self) -> list[Reading]:
        """Return one reading per item; raise BackendError when the driver is gone."""
        self.codes.clear()
        called: dict[tuple[str, tuple[str, ...]], tuple[int, Any]] = {}
        readings = (self._read(slot, called) for slot in self._slots)
        return [reading for reading in readings if reading is not None]

    def unread(self, status: ReadingStatus, detail: str) -> list[Reading]:
        """Return a reading without value for every item that the device may have; nothing is called."""
        return [slot.bad(status, detail) for slot in self._slots if slot.source is not None and not slot.item.optional]

    def _read(self, slot: _Slot, called: dict[tuple[str, tuple[str, ...]], tuple[int, Any]]) -> Reading | None:
        """Return the reading of *slot*; an answer serves every item that shares the call."""
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
    """Import the wrapper and start the library; raise BackendError that says what is missing and what to do."""
    progress.write("import amdsmi")
    os.environ[OWN_LOCKS] = "1"
    module = _import()
    library = Library(module, progress)
    try:
        init = module.AmdSmiInitFlags.INIT_AMD_GPUS
        code, _ = library.attempt("amdsmi_init", "amdsmi_init", init, expected=(OSError,))
    except OSError as error:  # wrappers since 7.1 look for the library when it is first called
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
    """Return where ROCm is installed, as its own tools find it."""
    return Path(os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm")


def _import() -> Any:
    """Return the wrapper: that which ROCm ships with its library, else the one that is installed for Python."""
    shipped = rocm_folder() / WRAPPER_FOLDER
    if (shipped / "amdsmi" / "__init__.py").is_file():
        sys.path.insert(0, str(shipped))
    os.environ.setdefault("ROCM_PATH", str(rocm_folder()))  # wrappers before 6.2 fail with KeyError without it
    printed = io.StringIO()  # the wrapper says on standard output which library it did not find
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
    """Name what the library lacks, and both versions as far as files tell them: the wrapper never got to run."""
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
    """Return what ROCm says of itself, else the number that the library's file carries."""
    folder = rocm_folder()
    try:
        return (folder / ".info" / "version").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return (folder / "lib" / "libamd_smi.so").resolve().name.partition(".so.")[2] or "unknown"
