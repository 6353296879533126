"""The meaning of each code on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nodevet.checks.engine.explanation import ACTIONS, Explanation, explain_event, explain_rule
from nodevet.checks.engine.judging import Rule

from .findings import MAXIMUM_FINDINGS, ListedFinding


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of a code, and its source."""

    code: str
    paragraphs: tuple[str, ...]
    source: str = ""


def meanings(entries: Sequence[ListedFinding], rules: Mapping[str, Rule]) -> tuple[Meaning, ...]:
    """Return the meaning of every code among *entries*; *rules* are those of the checks."""
    codes = list(dict.fromkeys(entry.finding.code for entry in entries))[:MAXIMUM_FINDINGS]
    by_code = {entry.finding.code: entry for entry in reversed(entries)}
    return tuple(_meaning(code, by_code[code], rules.get(code)) for code in codes)


def _meaning(code: str, entry: ListedFinding, rule: Rule | None) -> Meaning:
    found = explain_event(code) or (explain_rule(rule) if rule else None)
    if found is None:
        check = entry.finding.check
        return Meaning(code, (f"Finding of check {check}: see nodevet explain {check}.",))
    return Meaning(code, tuple(_paragraphs(found)), found.source)


def _paragraphs(found: Explanation) -> Iterator[str]:
    yield f"{_sentence(found.title)} {_sentence(found.meaning)}"
    yield f"Action: {ACTIONS[found.action.value]}. Fault class: {found.fault_class.value}."
    if found.ends:
        yield f"Clears on {found.ends}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
