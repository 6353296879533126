"""The status page: verdict, findings and readings of the node as HTML, without scripts and external resources."""

from __future__ import annotations

from .render import StatusPage

__all__ = ["StatusPage"]
