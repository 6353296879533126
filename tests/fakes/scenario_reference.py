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

A scenario is a TOML file for `nodevet agent --simulate PROFILE --scenario FILE`. [Simulate a
node](../how-to/simulate-a-node.md) shows how to use one. The agent rejects a file with a mistake as a whole. It reports
each mistake with its line, and exits with 78. If it already runs, it keeps the previous scenario. A file has at most
256 KiB, 200 faults and 50 loads.

All times count from the moment at which the agent loaded the file. A time is a number of seconds, or a duration such as
`"30s"`, `"5m"` or `"1h30m"`. A `device` is the number of an accelerator, `"cpu-0"`, `"memory"`, `"node"`, or a list of
these. `"all"` means all accelerators, or all processors of a node without accelerators.

## Keys of the file

| Key | Meaning | Default |
|---|---|---|
| `title` | title of the scenario in the log | `"a healthy node"` |
| `seed` | seed of the random noise and load; the devices do not depend on it | 0 |
| `level` | load outside of `[[load]]`, from 0 to 1 | a load that comes and goes |
| `probe_every` | interval of the probes | `"15m"` |

`[[load]]` has the keys `level`, `at` (default 0), `until` (default: no end) and `device` (default `"all"`).
`[[fault]]` has the keys `kind`, `at` (default 0), `until` (default: no end), `device`, and the settings of its kind.
When a fault ends, the counters keep their values, and all other readings return to normal.

A probe also runs 3 s after a fault ends, and 3 s after a fault begins that only a probe detects (`slow`,
`wrong_result`). A probe skips the devices with another fault. It does not run while the memory or the node has a fault.

## Kinds of faults

"""


def scenarios_page(_repository: Path) -> str:
    """Every profile, and every kind of fault with its settings and what it changes."""
    lines = [HEAD.rstrip("\n")]
    lines += ["", *_table(("Kind", "Simulated fault", "Settings", "Changes"), map(_kind, KINDS))]
    lines += ["", "A setting in bold is required.", ""]
    lines += _table(
        ("Setting", "Meaning", "Range"),
        ((f"`{name}`", setting.meaning, _range(name)) for name, setting in SETTINGS.items()),
    )
    lines += ["", "The agent rejects a fault that changes nothing on its device.", "", "## Profiles", ""]
    profiles = ((f"`{name}`", load_profile(name).summary) for name in profile_names())
    lines += _table(("Profile", "Node"), profiles)
    lines += ["", "A profile is a file in `checks/reference/profiles`; each of its tables names its source."]
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
