"""Libraries of the agent and of every collector, without what they import for functions that neither calls.

Whatever imports this imports it first. A node has several collectors, and each is a process with memory of its own.
"""

from __future__ import annotations

from .later import called_later, loaded_later

_UNUSED = (
    *("ipaddress", "urllib.parse"),  # for addresses in brackets, and for paths as URIs
    "linecache",  # for lines of source code in tracebacks
    *("msgspec._json_schema", "msgspec.inspect"),  # for schemas
    "platform",  # to tell AIX from Linux
)
_SCHEMA = "msgspec._json_schema"
_KNOWN = {
    ("pathlib", "urllib.parse.quote_from_bytes"): called_later("urllib.parse", "quote_from_bytes"),
    ("msgspec.json", f"{_SCHEMA}.schema"): called_later(_SCHEMA, "schema"),
    ("msgspec.json", f"{_SCHEMA}.schema_components"): called_later(_SCHEMA, "schema_components"),
    ("uuid", "platform.system"): lambda: "Linux",
}

with loaded_later(*_UNUSED, known=_KNOWN):
    import pathlib  # noqa: F401
    import traceback  # noqa: F401

    import msgspec  # noqa: F401
