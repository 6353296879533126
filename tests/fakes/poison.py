"""A Snapshot in which every text that a device, a driver or a person can choose has an evil end."""

from __future__ import annotations

from typing import Any

import msgspec

from nodevet.checks.core.model import Part, Snapshot

__all__ = ["POISON", "poisoned"]

POISON = "\"'><script>alert(1)</script><b onclick='x'>&amp;{{ 7 * 7 }}{% raw %}\x00\x1b\u202e\ud800"

_OURS = frozenset({"quantity", "name", "metric", "backend"})
"""Fields in which our own code looks for a word: with another end they select nothing, and less is shown."""


def poisoned(snapshot: Snapshot, *, everything: bool) -> Snapshot:
    """Return *snapshot* with POISON at the end of each text, but for parts, whose names are a closed list.

    *everything* means those fields and keys as well in which our own code looks for a word.
    """
    changed = _poisoned(snapshot, everything)
    assert isinstance(changed, Snapshot)
    return changed


def _poisoned(value: Any, everything: bool) -> Any:
    if type(value) is str:
        return value + POISON
    if isinstance(value, msgspec.Struct) and not isinstance(value, Part):
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if everything or name not in _OURS}
        return msgspec.structs.replace(value, **{name: _poisoned(field, everything) for name, field in fields.items()})
    if isinstance(value, dict):
        keys = (_poisoned(key, everything) if everything else key for key in value)
        return dict(zip(keys, (_poisoned(item, everything) for item in value.values()), strict=True))
    if type(value) is tuple:
        return tuple(_poisoned(item, everything) for item in value)
    return value
