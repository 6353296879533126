"""A process that stands still for seconds where a signal of its own is about to end it, before it ends of that.

It may have met an address that cannot be served, or nonsense in a file that every user may write. The files that it
had mapped there tell whose doing it is, and nobody can look at those of a process that ended. The thread sleeps in the
signal's handler; then the kernel restores the default, the same is met again (abort(3) sends its signal twice), and
the process ends as it would have. A signal wakes it early.
"""

from __future__ import annotations

import ctypes
import signal

WAKE = signal.SIGUSR1
CRASHES = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL)
SA_RESETHAND = 0x80000000


class _Action(ctypes.Structure):
    """``struct sigaction`` of the C libraries of Linux: the mask has 128 bytes."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def stand_still_at_crashes() -> None:
    """Have crashes call sleep(3), whose argument is then a number of 4 to 11: it may be called in a handler (POSIX)."""
    libc = ctypes.CDLL(None)
    for number, function, flags in ((WAKE, libc.getpid, 0), *((crash, libc.sleep, SA_RESETHAND) for crash in CRASHES)):
        action = _Action(handler=ctypes.cast(function, ctypes.c_void_p), flags=flags)
        libc.sigaction(ctypes.c_int(number), ctypes.byref(action), None)


def end_at_crashes() -> None:
    """Have crashes end the process at once again: a call that stands still here looks as if it hung."""
    libc, now, default = ctypes.CDLL(None), _Action(), _Action(handler=signal.SIG_DFL.value)
    for number in CRASHES:
        libc.sigaction(ctypes.c_int(number), None, ctypes.byref(now))
        if now.handler == ctypes.cast(libc.sleep, ctypes.c_void_p).value:  # else it is the library's own by now
            libc.sigaction(ctypes.c_int(number), ctypes.byref(default), None)
