"""What a person types with an acknowledgement: a note, and how long it holds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Instant
from nodevet.checks.engine.acknowledgement import date_words
from nodevet.checks.engine.damping import later

LONGEST_NOTE = 300
"""Characters: the note stands in one line on every surface."""

LONGEST_SECONDS = 366 * 86_400.0
"""A fault that nobody looks at for longer is nobody's."""

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)


def checked_note(text: str) -> str:
    """Return the note *text* without space around it. Raises UsageError where it is empty, too long or not one line."""
    note = text.strip()
    if not note:
        raise UsageError("ack: the note is empty: write who checked the fault and what was done")
    if len(note) > LONGEST_NOTE:
        raise UsageError(f"ack: the note has {len(note)} characters, at most {LONGEST_NOTE}: name the ticket instead")
    if not note.isprintable():
        raise UsageError("ack: the note has control characters or line breaks: write one line of plain text")
    return note


def end_of(text: str, now: Instant) -> Instant:
    """Return the moment that ``--until`` *text* names: ``7d`` from *now*, or a date in UTC. Raises UsageError.

    A date ends with its beginning: 2026-12-01 is midnight before that day.
    """
    seconds = _seconds(text, now)
    if seconds is None:
        raise UsageError(
            f"ack: --until {text}: write a duration such as 12h, 7d or 2w, or a date such as 2026-12-01"
            " or 2026-12-01T08:00Z (UTC)"
        )
    if seconds <= 0:
        raise UsageError(f"ack: --until {text}: it is not after now, {date_words(now)}: write a later date")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"ack: --until {text}: at most {LONGEST_SECONDS / 86_400:.0f} days: write an earlier date")
    return later(now, seconds)


def _seconds(text: str, now: Instant) -> float | None:
    """Return in how many seconds *text* is, or None where it is neither a duration nor a date."""
    found = _DURATION.fullmatch(text)
    if found:
        return float(found[1]) * _UNITS[found[2]]
    if not _DATE.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now.wall_seconds
