"""Markup that cannot be injected into: only what ``element`` made is markup, everything else is escaped text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

__all__ = ["LONGEST_TEXT", "Html", "element", "escape", "joined"]

LONGEST_TEXT = 600
"""Characters of one text that are shown: a device that calls itself a novel must not make the page one."""

_UNPRINTABLE = re.compile("[^\t\n\r -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Controls, lone surrogates, and the signs that turn the direction of writing around and so hide what is said."""

_VOID = frozenset({"br", "link", "meta", "path", "rect", "use"})


class Html(str):
    """Text that is markup already. Made by ``element`` and ``joined``, and of constants of ours."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return *text* as markup that shows it, cut to ``LONGEST_TEXT`` and without signs that are none to be seen."""
    shown = str(text)
    if len(shown) > LONGEST_TEXT:
        shown = shown[:LONGEST_TEXT] + "…"
    return Html(html.escape(_UNPRINTABLE.sub("\ufffd", shown)))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """Return the element *name* with *children* and *attributes*; None among either is left out.

    An underscore in the name of an attribute is a hyphen, one at its end is dropped, as in ``class_``.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """Return *children* one after another: markup as it is, text escaped, None left out."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))
