"""What the page's words mean: each code that was found, and the four verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodevet.checks.engine.explanation import ACTIONS, Explanation, explain_event, explain_rule
from nodevet.checks.engine.judging import Rule

from .findings import MAXIMUM_FINDINGS, Told
from .markup import Html, element, joined
from .shapes import badge

__all__ = ["about_section"]

_VERDICTS = (
    ("ok", "Everything that must be measured was measured lately, and is within its limits."),
    ("degraded", "Something is out of its limit; work may still run, slower or with less margin."),
    ("unknown", "Something that must be measured was not. That is not good news, and not proof of a fault."),
    ("failed", "A fault was confirmed. Do not send work here until it is over."),
)


def about_section(entries: Sequence[Told], rules: Mapping[str, Rule]) -> Html:
    """Return what every code among *entries* means, and the verdicts; *rules* are those of the checks."""
    codes = list(dict.fromkeys(entry.finding.code for entry in entries))[:MAXIMUM_FINDINGS]
    by_code = {entry.finding.code: entry for entry in reversed(entries)}
    items = [_code(code, by_code[code], rules.get(code)) for code in codes]
    verdicts = element("dl", *(_verdict(state, text) for state, text in _VERDICTS), class_="verdicts")
    return element(
        "section", element("h2", "What the words mean", id="about-name"), *items, verdicts, class_="about",
        aria_labelledby="about-name",
    )  # fmt: skip


def _code(code: str, entry: Told, rule: Rule | None) -> Html:
    found = explain_event(code) or (explain_rule(rule) if rule else None)
    heading = element("h3", element("code", code))
    if found is None:
        said = f"A finding of check {entry.finding.check}; nodevet explain {entry.finding.check} says what it judges."
        return element("article", heading, element("p", said), id=f"about-{code}")
    return element("article", heading, *_paragraphs(found), id=f"about-{code}")


def _paragraphs(found: Explanation) -> Iterable[Html]:
    yield element("p", f"{_sentence(found.title)} {_sentence(found.meaning)}")
    yield element("p", f"What to do: {ACTIONS[found.action.value]}. Fault of: {found.fault_class.value}.")
    if found.ends:
        yield element("p", f"Clears on {found.ends}.")
    if found.source:
        yield element("p", f"Source: {found.source}", class_="soft")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _verdict(state: str, text: str) -> Html:
    return joined([element("dt", badge(state)), element("dd", text)])
