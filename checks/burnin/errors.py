"""What can go wrong with a workload without the device being at fault.

BurninError
├── RefusedError        the workload cannot run here; one line says why and what to do
│   └── FormatError     this number format cannot be run on this device; others may
│       └── UntoldFormatError   nothing tells whether the device has this number format
├── NotExactError       operands whose sums would leave the exact range: never narrowed silently
└── InterruptionError   the parent asked to stop
"""

from __future__ import annotations

from nodevet.checks.core.errors import NodevetError


class BurninError(NodevetError):
    """A workload ended without measuring what it set out to."""


class RefusedError(BurninError):
    """The workload cannot run here: names what is missing and what to do."""


class FormatError(RefusedError):
    """This number format cannot be run on this device; others may."""


class UntoldFormatError(FormatError):
    """Nothing tells whether the device has this number format, so that leaving it out is not excused."""


class NotExactError(BurninError):
    """Operands whose sums could leave the range in which every order of summation gives the same bits."""


class InterruptionError(BurninError):
    """The parent asked the workload to stop."""
