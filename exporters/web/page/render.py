"""The status page, rendered once per judgement; only the age of the judgement differs between requests."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import Instant, Snapshot
from nodevet.exporters.format import age
from nodevet.exporters.templates import Templates, Verbatim

if TYPE_CHECKING:
    from nodevet.checks.engine.judging import Rule

    from .content import Variant

SHORTEST_REFRESH_SECONDS = 5
STARTING_REFRESH_SECONDS = 2

LONGEST_TEXT = 600
"""Maximum number of characters of one text: a device with an endless name must not bloat the page."""

PATIENCE_SECONDS = 2.0
"""Maximum wait (s) of a request while another one renders the page: each waiting request holds a thread.

The first rendering imports and compiles, from a disk that may hang.
"""


class StatusPage:
    """Renders a Snapshot once per variant and returns the same text until the next Snapshot."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        """Start with nothing rendered; *now* gives the time by which a verdict becomes stale."""
        self._now = now
        folder = Path(__file__).parent
        self._style = Verbatim((folder / "page.css").read_text(encoding="utf-8"))
        self._templates = Templates(folder, longest_text=LONGEST_TEXT)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[Variant, str] = {}

    def render(
        self, snapshot: Snapshot, *, complaint: str | None = None, report: bool = False, still: bool = False
    ) -> bytes:
        """Return the page of *snapshot*. Safe to call from several threads.

        *complaint* is the reason why the agent makes no progress; *report* adds the link to the report; a *still* page
        states that it does not refresh itself. Raises PageError if jinja2 cannot be imported, BusyError if that takes
        too long.
        """
        now = self._now()
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise BusyError(f"the page was not rendered within {PATIENCE_SECONDS:g} s")
        try:
            # The first request imports what a node without a reader of its page never needs.
            from .content import AGE, variant_of

            variant = variant_of(snapshot, now, complaint, report=report, still=still)
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._pages = {}
            page = self._pages.get(variant)
            if page is None:
                page = self._pages[variant] = self._rendered(snapshot, variant)
        finally:
            self._lock.release()
        return page.replace(AGE, age(now, snapshot.time)).encode()

    def headers(self, snapshot: Snapshot, *, still: bool = False) -> dict[str, str]:
        """Return the headers of the page: content security policy and refresh interval."""
        policy = (
            f"default-src 'none'; style-src '{self._style_digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return headers if still else {**headers, "Refresh": str(refresh_seconds(snapshot))}

    @cached_property
    def _style_digest(self) -> str:
        return f"sha256-{base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()}"

    def _rendered(self, snapshot: Snapshot, variant: Variant) -> str:
        from .content import page_of

        values = page_of(snapshot, variant, self._rules, refresh=refresh_seconds(snapshot))
        return self._templates.render("page.html", page=values, style=self._style)

    @cached_property
    def _rules(self) -> Mapping[str, Rule]:
        from nodevet.checks.engine.explanation import declared_rules

        return declared_rules()


def refresh_seconds(snapshot: Snapshot) -> int:
    """Return after how many seconds a browser reads the page again."""
    if not snapshot.agent.ready:
        return STARTING_REFRESH_SECONDS
    return max(SHORTEST_REFRESH_SECONDS, round(snapshot.agent.interval_seconds))
