"""A Snapshot in which every text that a device, a driver or a person can choose has an evil end."""

from __future__ import annotations

from typing import Any

import msgspec

from nodevet.checks.core.model import Snapshot

__all__ = ["POISON", "poisoned"]

POISON = "\"'><script>alert(1)</script><b onclick='x'>&amp;{{ 7 * 7 }}{% raw %}\x00\x1b\u202e\ud800"

_OURS = frozenset({"quantity", "name", "metric", "backend"})
"""Fields in which our own code looks for a word: with another end they would select nothing to be shown."""


def poisoned(snapshot: Snapshot, *, keys: bool) -> Snapshot:
    """Return *snapshot* with POISON at the end of each text; *keys* adds it to those of its tables as well."""
    changed = _poisoned(snapshot, keys)
    assert isinstance(changed, Snapshot)
    return changed


def _poisoned(value: Any, keys: bool) -> Any:
    if type(value) is str:
        return value + POISON
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in _OURS}
        return msgspec.structs.replace(value, **{name: _poisoned(field, keys) for name, field in fields.items()})
    if isinstance(value, dict):
        return {_poisoned(key, keys) if keys else key: _poisoned(item, keys) for key, item in value.items()}
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_poisoned(item, keys) for item in value)
    return value
