"""Errors of a workload that are no fault of the device.

BurninError
├── RefusedError        the workload cannot run here; one line names the reason and the remedy
│   └── FormatError     this number format cannot be run on this device; others may
│       └── UntoldFormatError   it is unknown whether the device has this number format
├── NotExactError       operands whose sums would leave the exact range: never narrowed silently
└── InterruptionError   the parent asked to stop
"""

from __future__ import annotations

from nodevet.checks.core.errors import NodevetError


class BurninError(NodevetError):
    """A workload ended without complete measurements."""


class RefusedError(BurninError):
    """The workload cannot run here: names the missing resource and the remedy."""


class FormatError(RefusedError):
    """This number format cannot be run on this device; others may."""


class UntoldFormatError(FormatError):
    """It is unknown whether the device has this number format, so that skipping it is not excused."""


class NotExactError(BurninError):
    """Operands whose sums could leave the range in which every order of summation gives the same bits."""


class InterruptionError(BurninError):
    """The parent asked the workload to stop."""
