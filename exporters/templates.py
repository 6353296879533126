"""HTML templates with escaping always on. jinja2 is imported when the first page is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.guard import Bug, attempt

_UNPRINTABLE = re.compile("[^\t\n\r -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Controls, lone surrogates, and the signs that turn the direction of writing around and so hide what is said."""

_STEP = "correct that, or install it anew"

_Render = Callable[[str, Mapping[str, object]], str]


class PageError(NodevetError):
    """No HTML page can be made here: says why and what to do."""


class Verbatim(str):
    """Text of ours that is not escaped: a style sheet. Never text of a device, a driver or a person."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text as it is, which is how jinja2 asks for markup."""
        return self


class Templates:
    """The templates of one folder, read at once: a package that is replaced later changes no page of this process."""

    def __init__(
        self, folder: Path, *, filters: Mapping[str, Callable[..., object]] | None = None, longest_text: int = 0
    ) -> None:
        """Read from *folder*; templates may use *filters*. *longest_text* cuts each text that is shown, 0 none."""
        texts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.html")}
        self._make = partial(_renderer, texts, filters or {}, longest_text)
        self._render: _Render | None = None

    def render(self, name: str, **values: object) -> str:
        """Return the page of the template *name* with *values*. Raises PageError where jinja2 cannot be imported."""
        if self._render is None:
            made = attempt(self._make)
            if isinstance(made, Bug):
                raise PageError(f"an HTML page needs jinja2, which cannot be imported ({made.error}): {_STEP}")
            self._render = made
        return self._render(name, values)


def _renderer(texts: Mapping[str, str], filters: Mapping[str, Callable[..., object]], longest_text: int) -> _Render:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=partial(_shown, longest_text),
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(filters)
    return lambda name, values: environment.get_template(name).render(values)


def _shown(longest_text: int, value: object) -> object:
    """Return *value* as it is shown before it is escaped: cut, and without signs that are none to be seen."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    if 0 < longest_text < len(text):
        text = text[:longest_text] + "…"
    return text if text.isprintable() else _UNPRINTABLE.sub("\ufffd", text)
