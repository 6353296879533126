"""Makes a crashing process sleep for seconds before a signal of its own ends it.

The process may have accessed an unmapped address, or invalid data in a file that every user may write. Its mapped files
show the cause, but those of an exited process cannot be examined. The thread sleeps in the signal's handler; then the
kernel restores the default action, the same fault recurs (abort(3) sends its signal twice), and the process ends as it
would have. A signal ends the sleep early.
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
    """Make crashes call sleep(3), with the signal number 4 to 11 as seconds: a handler may call it (POSIX)."""
    libc = ctypes.CDLL(None)
    for number, function, flags in ((WAKE, libc.getpid, 0), *((crash, libc.sleep, SA_RESETHAND) for crash in CRASHES)):
        action = _Action(handler=ctypes.cast(function, ctypes.c_void_p), flags=flags)
        libc.sigaction(ctypes.c_int(number), ctypes.byref(action), None)


def end_at_crashes() -> None:
    """Make crashes end the process at once again: a call that sleeps here would look like a hang."""
    libc, now, default = ctypes.CDLL(None), _Action(), _Action(handler=signal.SIG_DFL.value)
    for number in CRASHES:
        libc.sigaction(ctypes.c_int(number), None, ctypes.byref(now))
        if now.handler == ctypes.cast(libc.sleep, ctypes.c_void_p).value:  # otherwise it is the library's own by now
            libc.sigaction(ctypes.c_int(number), ctypes.byref(default), None)
