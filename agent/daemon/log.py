"""The agent's log on standard error: JSON lines for the journal, plain lines for people.

Where JOURNAL_STREAM names our standard error, each line begins with ``<N>``, from which journald takes the priority
(sd-daemon(3)). A state that changed is a warning, a state that goes on is debug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

from nodevet.agent.terminal.outlet import Outlet, Stream

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Levels as syslog(3) numbers them."""

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _Tolerant:
    """A stream that loses what cannot be written: a full disk or a reader that went away does not end the agent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def configure(level: str = "info", stream: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Make every structlog logger of this process write to *stream* (standard error) from *level* on."""
    chosen: TextIO = sys.stderr if stream is None else stream
    structlog.configure(
        processors=_processors(chosen, os.environ if environment is None else environment),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Tolerant(chosen))),
        cache_logger_on_first_use=False,
    )


def make_logger(
    level: str = "info",
    stream: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
    outlet: Outlet | None = None,
) -> FilteringBoundLogger:
    """Return a logger of its own that writes to *stream* (standard error) from *level* on.

    Where *outlet* is given, its thread writes, and no call of the logger ever waits for a reader.
    """
    chosen: TextIO = sys.stderr if stream is None else stream
    descriptor = _descriptor(chosen)
    sink = _Tolerant(chosen) if outlet is None or descriptor is None else Stream(outlet, descriptor)
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, sink)),
        processors=_processors(chosen, os.environ if environment is None else environment),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
    ).bind()
    return logger


def _descriptor(stream: TextIO) -> int | None:
    """Return the descriptor behind *stream*, or None where it writes to memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def speaks_to_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether JOURNAL_STREAM (device:inode) names *stream*: a redirected one does not go to the journal."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _processors(stream: TextIO, environment: Mapping[str, str]) -> list[Processor]:
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if speaks_to_journal(stream, environment):
        return [*common, structlog.processors.format_exc_info, _journal_line]
    colors = stream.isatty() and not environment.get("NO_COLOR")
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    return [*common, console]


def _journal_line(_logger: Any, level: str, fields: MutableMapping[str, Any]) -> str:
    text = msgspec.json.encode(fields, enc_hook=str).decode()
    return f"<{PRIORITIES.get(level, PRIORITIES['info'])}>{text}"
