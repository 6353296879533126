"""What the kernel log and the drivers told, counted: also what is no fault of the hardware."""

from __future__ import annotations

from nodevet.checks.core.model import Snapshot
from nodevet.exporters.format import age, counted

from .markup import Html, element

__all__ = ["events_section"]

MAXIMUM_EVENTS = 40

_HEADS = ("event", "device", "fault of", "times", "last")


def events_section(snapshot: Snapshot, names: dict[str, str]) -> Html | None:
    """Return the section of events, the newest first; None where none was told."""
    events = sorted(snapshot.events, key=lambda event: -event.last.wall_seconds)
    if not events:
        return None
    rows = [
        element(
            "tr",
            element("th", element("code", event.code), scope="row"),
            element("td", names.get(event.device, event.device)),
            element("td", event.fault_class.value),
            element("td", f"{event.count:,}", class_="n"),
            element("td", age(snapshot.time, event.last)),
        )
        for event in events[:MAXIMUM_EVENTS]
    ]
    head = element(
        "tr", *(element("th", text, scope="col", class_="n" if text == "times" else None) for text in _HEADS)
    )
    table = element("table", element("thead", head), element("tbody", *rows), class_="figures")
    hidden = len(events) - MAXIMUM_EVENTS
    more = element("p", f"and {counted(hidden, 'kind')} more", class_="soft") if hidden > 0 else None
    name = element("h2", "Events of kernel log and drivers", id="events-name")
    return element("section", name, element("div", table, class_="wide"), more, aria_labelledby="events-name")
