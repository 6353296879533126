"""What a test may do only with rights that no package brings."""

from __future__ import annotations

import os

import pytest

__all__ = ["NO_ROOT", "NO_TRACING", "needs_root"]

NO_ROOT = "only root may do this"
NO_TRACING = "no process may be traced here"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=NO_ROOT)
