"""Shapes that say a state without colour, and bars: small drawings in the markup itself."""

from __future__ import annotations

from urllib.parse import quote

from .markup import Html, element

__all__ = ["FAVICONS", "SHAPES", "badge", "bar", "icon"]

_CIRCLE = "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z"
_PATHS = {
    "ok": (_CIRCLE, "M4.6 8.3l2.3 2.3 4.5-4.9"),
    "degraded": ("M8 1.2L15.2 14.4H.8z", "M8 6v4.2M8 12.2v.6"),
    "failed": ("M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2"),
    "unknown": (_CIRCLE, "M5.9 6.1a2.1 2.1 0 1 1 3.1 1.9c-.7.4-1 .8-1 1.6M8 11.7v.6"),
}
"""Outline and sign of each state: a disc with a tick, a triangle, an octagon with a cross, a disc with a question."""

_STATE_OF = {"pass": "ok", "warn": "degraded", "fail": "failed", "unmeasured": "unknown", "skipped": "unknown"}

_FILLS = {"ok": "#17713f", "degraded": "#8a5a00", "failed": "#b3261e", "unknown": "#4d5863"}


def icon(state: str) -> Html:
    """Return the shape of *state* or outcome; it says nothing to those who hear the page, so words stand beside it."""
    return element(
        "svg",
        element("use", href=f"#shape-{_STATE_OF.get(state, state)}"),
        class_="icon", viewBox="0 0 16 16", aria_hidden="true",
    )  # fmt: skip


def badge(state: str) -> Html:
    """Return shape and word of *state* or outcome."""
    return element("span", icon(state), element("span", state), class_=f"badge {_STATE_OF.get(state, state)}")


def bar(ratio: float, tone: str = "") -> Html:
    """Return a bar that is filled to *ratio*, cut to 0 to 1, in the colour of *tone* where it has one."""
    filled = f"{100 * min(max(ratio, 0.0), 1.0):.1f}"
    return element(
        "svg",
        element("rect", class_="track", width=100, height=6),
        element("rect", class_="fill", width=filled, height=6),
        class_=f"bar {tone}".rstrip(), viewBox="0 0 100 6", preserveAspectRatio="none", aria_hidden="true",
    )  # fmt: skip


def _symbol(state: str) -> Html:
    outline, sign = _PATHS[state]
    return element(
        "symbol",
        element("path", d=outline, fill="currentColor"),
        element("path", d=sign, class_="sign"),
        id=f"shape-{state}", viewBox="0 0 16 16",
    )  # fmt: skip


def _favicon(state: str) -> str:
    outline, sign = _PATHS[state]
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="{_FILLS[state]}" d="{outline}"/>'
        f'<path fill="none" stroke="#fff" stroke-width="1.6" stroke-linecap="round" d="{sign}"/></svg>'
    )
    return f"data:image/svg+xml,{quote(drawing)}"


SHAPES = element("svg", *map(_symbol, _PATHS), class_="shapes", aria_hidden="true", width=0, height=0)
"""The shapes of every state, once per page."""

FAVICONS = {state: _favicon(state) for state in _PATHS}
"""What the tab of a browser shows, by state."""
