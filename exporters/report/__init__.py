"""A report for people: one HTML page that needs nothing else, to be read, printed and sent."""

from __future__ import annotations

from .document import ReportDocument, from_burn_in, from_snapshot, from_status, read_document
from .render import render, render_file

__all__ = [
    "ReportDocument",
    "from_burn_in",
    "from_snapshot",
    "from_status",
    "read_document",
    "render",
    "render_file",
]
