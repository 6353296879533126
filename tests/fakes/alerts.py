"""What an operator is paged with: pages of metrics of several nodes, held against the shipped rules by promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["NoAnswerError", "raised"]

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)")
MINUTES = 15


class NoAnswerError(Exception):
    """Promtool could not say."""


def raised(folder: Path, rules: Path, pages: Mapping[str, str], alert: str) -> int:
    """Return how many times *alert* of *rules* is firing where each node's *pages* stay as they are for a while.

    Promtool prints what it got where something else is expected; a name that never fires makes it print it.
    """
    series = [
        {"series": f"{found[1]}{{{','.join(filter(None, (found[2], place)))}}}", "values": f"{found[3]}x{MINUTES}"}
        for node, page in pages.items()
        for place in [f'job="nodevet",instance="{node}"']
        for line in page.splitlines()
        if (found := SAMPLE.fullmatch(line)) and found[3] not in ("NaN", "+Inf", "-Inf")
    ]
    look = {
        "eval_time": f"{MINUTES}m",
        "alertname": alert,
        "exp_alerts": [{"exp_labels": {"never": "this"}, "exp_annotations": {}}],
    }
    case = {"interval": "1m", "input_series": series, "alert_rule_test": [look]}
    file = folder / f"{alert}.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}))  # is YAML
    done = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60, check=False, cwd=folder
    )
    _, differs, got = (done.stdout + done.stderr).partition("got:")
    if not differs:
        raise NoAnswerError(done.stdout + done.stderr)
    return len(re.findall(r"alertname=", got))
