"""The rules of kernel_rules.csv, compiled, and the one way to try them."""

from __future__ import annotations

import functools
import re

import msgspec

from nodevet.checks.errors import ReferenceDataError
from nodevet.checks.kernel_log.lines import Line, Origin
from nodevet.checks.reference.kernel_policy import KernelRule, RuleKind, kernel_rules

__all__ = ["Match", "base_address", "match_line", "normalised_pci"]

_ADDRESS = r"(?<![0-9a-f])(?<![0-9a-f]:)(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?(?![0-9a-f]|[:.][0-9a-f])"
_PCI = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7])?\b",
    re.IGNORECASE,
)
_QUOTES = frozenset("'\"`(\u201c\u2018")


class Match(msgspec.Struct, frozen=True):
    """A rule that fits a line, with the named groups that took part."""

    rule: KernelRule
    groups: dict[str, str]
    start: int


def match_line(line: Line) -> Match | None:
    """Return the first rule that fits *line*, or None. What a program wrote never matches."""
    if line.origin is Origin.PROGRAM or not line.text:
        return None
    lowered = line.text.lower()
    for rule, pattern in _compiled():
        if rule.marker not in lowered:
            continue
        found = pattern.search(line.text)
        if found is None or (line.origin is Origin.UNKNOWN and _quoted(line.text, found.start())):
            continue
        groups = {name: value.strip() for name, value in found.groupdict().items() if value is not None}
        return None if rule.kind is RuleKind.IGNORE else Match(rule, groups, found.start())
    return None


def normalised_pci(text: str) -> str | None:
    """Return the PCI address in *text* as lower case ``domain:bus:device[.function]``, or None where there is none."""
    match = _PCI.match(text.strip())
    if match is None:
        return None
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus'].lower()}{match['function'] or ''}"


def base_address(pci: str) -> str:
    """Return *pci* without its function: what two sources of one device agree on."""
    return pci.partition(".")[0]


def _quoted(text: str, start: int) -> bool:
    """Return whether the words before *start* only quote a log line, such as a question or a program's message."""
    return start > 0 and text[start - 1] in _QUOTES


@functools.lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[KernelRule, re.Pattern[str]], ...]:
    return tuple((rule, _compile(rule, number)) for number, rule in enumerate(kernel_rules(), start=2))


def _compile(rule: KernelRule, line: int) -> re.Pattern[str]:
    source = rule.pattern.replace("%PCI%", f"(?P<pci>{_ADDRESS})").replace("%ADDRESS%", _ADDRESS)
    try:
        return re.compile(source, re.IGNORECASE)
    except re.error as error:
        raise ReferenceDataError(f"kernel_rules.csv, line {line}, column 'pattern': {error}") from error
