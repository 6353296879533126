"""Imported first by what needs torch: skips the whole test file where torch is not installed."""

from __future__ import annotations

import importlib.util

import pytest

NO_TORCH = "torch is not installed"

if importlib.util.find_spec("torch") is None:
    pytest.skip(NO_TORCH, allow_module_level=True)
