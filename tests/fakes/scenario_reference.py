"""The reference page of scenarios, made from the kinds of faults and the tables of what they do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodevet.checks.reference.profiles import load_profile, profile_names
from nodevet.checks.reference.tables import load_table
from nodevet.checks.simulation.faults import KINDS, RANGES, SETTINGS, LogLine, effects_of

__all__ = ["scenarios_page"]

HEAD = """\
# Scenarios of simulated nodes

<!-- Written by make golden from checks/reference. -->

A scenario is a TOML file for `nodevet agent --simulate PROFILE --scenario FILE`; [how to simulate a
node](../how-to/simulate-a-node.md) tells what to do with one. A file with a mistake is refused as a whole, each mistake
with its line: exit status 78, and while the agent runs the scenario before stays in force. It holds at most 256 KiB,
200 faults and 50 loads.

Every time counts from the moment at which the agent took the file up, and is a number of seconds or a span such as
`"30s"`, `"5m"`, `"1h30m"`. A `device` is the number of a slot, `"cpu-0"`, `"memory"`, `"node"`, a list of these, or
`"all"`: all that the node computes on.

## Keys of the file

| Key | Meaning | Default |
|---|---|---|
| `title` | what people read in the log | `"a healthy node"` |
| `seed` | another number gives another course of noise and load; devices stay the same | 0 |
| `level` | load outside of `[[load]]`, from 0 to 1 | jobs that come and go |
| `probe_every` | between probes, which also run 3 s after a fault ended, or began that only they see | `"15m"` |

`[[load]]` has `level`, `at` (0), `until` (for good) and `device` (`"all"`). `[[fault]]` has `kind`, `at` (0), `until`
(for good), `device`, and the settings of its kind. What a counter grew by stays when the fault ends; all else is as
before. A probe leaves out devices whose fault lasts, and all while memory or node have one.

## Kinds of faults

"""


def scenarios_page(_repository: Path) -> str:
    """Every profile, and every kind of fault with its settings and what it changes."""
    lines = [HEAD.rstrip("\n")]
    lines += ["", *_table(("Kind", "What it stands for", "Settings", "Changes"), map(_kind, KINDS))]
    lines += ["", "A setting in bold is required.", ""]
    lines += _table(
        ("Setting", "Meaning", "Range"),
        ((f"`{name}`", setting.meaning, _range(name)) for name, setting in SETTINGS.items()),
    )
    lines += ["", "A fault that would change nothing on the device that it names is refused.", "", "## Profiles", ""]
    profiles = ((f"`{name}`", load_profile(name).summary) for name in profile_names())
    lines += _table(("Profile", "Node"), profiles)
    lines += ["", "A profile is a file in `checks/reference/profiles`; each of its tables names its sources."]
    return "\n".join(lines) + "\n"


def _range(name: str) -> str:
    return "{} to {}".format(*RANGES[name]) if name in RANGES else ""


def _kind(name: str) -> tuple[str, ...]:
    kind = KINDS[name]
    settings = (f"**`{key}`**" if key in kind.required else f"`{key}`" for key in kind.settings)
    quantities = dict.fromkeys(f"`{effect.quantity}`" for effect in effects_of(name))
    logged = any(row.kind == name for row in load_table("simulated_lines.csv", LogLine))
    changes = [*quantities, *(["kernel log"] if logged else [])]
    return (f"`{name}`", kind.help, ", ".join(settings), ", ".join(changes))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(cell or '-' for cell in row)} |" for row in rows),
    ]
