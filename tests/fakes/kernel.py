"""Why this machine cannot show what its kernel does: no package brings it."""

from __future__ import annotations

__all__ = ["NO_CRASHES", "NO_KERNEL_LOG", "NO_MOUNTS"]

NO_KERNEL_LOG = "this machine shows no kernel log"
NO_CRASHES = "this kernel prints no crashes: debug.exception-trace is off, or they come too fast"
NO_MOUNTS = "no file system may be mounted"
