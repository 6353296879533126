"""Imported first by what needs torch: skips the whole test file where torch is not installed."""

from __future__ import annotations

import importlib.util
import os

import pytest

NO_TORCH = "torch is not installed"

if importlib.util.find_spec("torch") is None:
    pytest.skip(NO_TORCH, allow_module_level=True)

# Threads of torch that wait for each other sleep. By default they spin, which keeps the processor from the very thread
# that is waited for where other tests run beside: two thirds of the processor time of a load went there.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
