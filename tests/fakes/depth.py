"""How deep the tests of this run look, as its options say."""

from __future__ import annotations

IS_CAMPAIGN = False
"""Whether campaigns run in full (``--soak``); tests/conftest.py sets it before the first test."""
