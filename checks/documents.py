"""JSON from outside, decoded: whatever is no such document is one kind of error.

The decoder leaves text that is no UTF-8, and nesting without end, to Python's own errors. Who forgets one of them lets
a single bit of a file end the agent, at each start.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["decoded"]

Document = TypeVar("Document")


def decoded(content: bytes, kind: type[Document]) -> Document:
    """Return the JSON in *content* as a *kind*. Raises msgspec.DecodeError for whatever is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
