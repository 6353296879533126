"""Render a burn-in or status document as one HTML page with verdict, inventory, figures and plots."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import emit, say
from nodevet.checks.core.errors import UsageError
from nodevet.checks.system.files import foreign_link, replace

from . import _options as options

SUMMARY = "render a report as HTML"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet report``."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="render")
    render = verbs.add_parser("render", help="write the page", description=__doc__)
    render.add_argument("document", help="JSON of `nodevet burn-in --json` or `nodevet status --json`; - reads stdin")
    render.add_argument("--output", "-o", default="-", help="the HTML file to write (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    """Render the document; exit 0 if the page was written."""
    from nodevet.exporters.report.render import render_file

    page = render_file(options.content(arguments.document, "report"), name=arguments.document)
    if arguments.output == "-":
        emit(page.encode())
        return exits.OK
    try:
        write_page(Path(arguments.output), page.encode())
    except OSError as error:
        raise UsageError(f"report: {arguments.output} cannot be written: {error.strerror}") from error
    say(f"wrote {arguments.output}")
    return exits.OK


def write_page(path: Path, page: bytes) -> None:
    """Write *page*: a file is replaced whole; a pipe or a link that somebody chose is written through.

    Raises OSError, also for a link of another user, which might lead a root process anywhere.
    """
    link = foreign_link(path)
    if link is not None:
        raise OSError(errno.ELOOP, f"{link} is a symbolic link of another user", str(path))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(page)
    else:
        replace(path, page, mode=0o644)
