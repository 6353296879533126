"""Libraries of every reader child, without what they import for functions that no reader calls.

Whatever imports this imports it first. A node has several children, and each is a process with memory of its own.
"""

from __future__ import annotations

from nodevet.checks.core.later import loaded_later

with loaded_later("ipaddress", "msgspec.inspect"):  # for addresses in brackets, and for schemas
    import pathlib  # noqa: F401

    import msgspec  # noqa: F401
