"""A process that stands still for seconds where it met an address that cannot be served, before it ends of that.

The files that it had mapped there tell whose doing it is, and nobody can look at those of a process that ended. The
thread sleeps in the signal's handler; then the kernel restores the default, the address is met again, and SIGBUS ends
the process as it would have. A call wakes it early.
"""

from __future__ import annotations

import ctypes
import signal

__all__ = ["WAKE", "end_at_bus_errors", "stand_still_at_bus_errors"]

WAKE = signal.SIGUSR1
SA_RESETHAND = 0x80000000


class _Action(ctypes.Structure):
    """``struct sigaction`` of the C libraries of Linux: the mask has 128 bytes."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def stand_still_at_bus_errors() -> None:
    """Have SIGBUS call sleep(3), whose argument is then its number, 7: it may be called in a handler (POSIX)."""
    libc = ctypes.CDLL(None)
    for number, function, flags in ((WAKE, libc.getpid, 0), (signal.SIGBUS, libc.sleep, SA_RESETHAND)):
        action = _Action(handler=ctypes.cast(function, ctypes.c_void_p), flags=flags)
        libc.sigaction(ctypes.c_int(number), ctypes.byref(action), None)


def end_at_bus_errors() -> None:
    """Have SIGBUS end the process at once again: a call that stands still here looks as if it hung."""
    libc, now = ctypes.CDLL(None), _Action()
    libc.sigaction(ctypes.c_int(signal.SIGBUS), None, ctypes.byref(now))
    if now.handler == ctypes.cast(libc.sleep, ctypes.c_void_p).value:  # else it is the library's own by now
        default = _Action(handler=signal.SIG_DFL.value)
        libc.sigaction(ctypes.c_int(signal.SIGBUS), ctypes.byref(default), None)
