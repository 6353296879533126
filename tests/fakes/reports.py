"""Reports of snapshots built by hand."""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.checks.core.model import Snapshot
from nodevet.exporters.documents.schema import burn_in_document
from nodevet.exporters.documents.types import SeriesDocument
from nodevet.exporters.report.document import ReportDocument, from_burn_in


def from_snapshot(snapshot: Snapshot, *, plan: str = "", series: Iterable[SeriesDocument] = ()) -> ReportDocument:
    """Return the report of *snapshot*, with the curves *series* of its load where they were kept."""
    return from_burn_in(burn_in_document(snapshot, plan=plan, series=series))
