"""``nodevet burn-in`` over load children that do as they are told: ``scripted_burn_in.py SCRIPT WORDS...``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from nodevet.agent.commands import burn_in
from nodevet.agent.terminal import exits
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Device

PROGRAM = Path(__file__).with_name("scripted_load.py")


def run(script: Mapping[str, str], *words: str) -> int:
    """Run each format of *script* by name and return the exit code."""

    def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
        return Launch((sys.executable, "-I", str(PROGRAM), json.dumps(dict(script))), dict(environment))

    parser = argparse.ArgumentParser()
    burn_in.configure(parser)
    named = [word for dtype in script for word in ("--dtype", dtype)]
    return burn_in.run(parser.parse_args([*named, *words]), spawn, patience_seconds=1.0)


if __name__ == "__main__":
    try:
        sys.exit(run(json.loads(sys.argv[1]), *sys.argv[2:]))
    except NodevetError as error:  # as the command line ends: here an agent that does not answer in time
        sys.stderr.write(f"{error}\n")
        sys.exit(exits.UNKNOWN)
