"""Show the link matrix of the accelerators of this node, or of a saved `nvidia-smi topo -m` with --from.

If the node has accelerators of several vendors, --vendor selects one. --expect compares the matrix with another one,
and a worse link is a failure.
"""

from __future__ import annotations

import argparse
import codecs
from pathlib import Path

import msgspec

from nodevet.agent.readers.start_failure import start_step
from nodevet.agent.simulated.origin import simulated_owner
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say
from nodevet.checks.backends.topology import ABSENT, connected_vendors
from nodevet.checks.core.errors import BusyError
from nodevet.checks.system.process import Done, RunError, Runner, python_module
from nodevet.checks.topology.comparison import asymmetries, compare
from nodevet.checks.topology.matrix import Topology, render_table, to_json
from nodevet.checks.topology.saved import parse_topology

from . import _options as options

SUMMARY = "show the link matrix of the accelerators"
READ_SECONDS = 20.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet topo``."""
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="saved output of nvidia-smi topo -m; - for standard input"
    )
    parser.add_argument("--expect", metavar="FILE", help="expected matrix: saved output of nvidia-smi topo -m")
    parser.add_argument(
        "--vendor", choices=connected_vendors(), help="vendor of the accelerators (default: the first one present)"
    )
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the matrix; exit 2 if it differs from the expected one, 1 if it is inconsistent or lacks a device."""
    source = arguments.source
    topology = parse_topology(_text(source)) if source is not None else _of_this_node(arguments)
    differences = compare(topology, parse_topology(_text(arguments.expect))) if arguments.expect else ()
    contradictions = asymmetries(topology)
    if arguments.json:
        document = to_json(topology)
        if arguments.expect:
            document["differences"] = msgspec.to_builtins(differences)
        say(msgspec.json.encode(document).decode())
    else:
        say(render_table(topology))
        for difference in (*differences, *contradictions):
            say(f"{difference.first} to {difference.second}: {difference.actual}, expected {difference.expected}")
    if differences:
        return exits.FAILED
    return exits.DEGRADED if contradictions or topology.problems else exits.OK


def _text(name: str) -> str:
    data = options.content(name, "topo")
    # PowerShell saves what it redirects as UTF-16 with a mark.
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    return data.decode(encoding, "replace")


def _of_this_node(arguments: argparse.Namespace) -> Topology:
    """Return the matrix of the vendor that *arguments* name, or of the first that has accelerators here."""
    settings = options.configuration(arguments).agent
    simulated = simulated_owner(Path(settings.runtime_dir))
    if simulated is not None:
        raise BusyError(
            f"topo: {settings.runtime_dir} belongs to the simulated node {simulated}: "
            f"topo reads the drivers of this machine; its status page shows the links of the simulated node"
        )
    absent = []
    for vendor in (arguments.vendor,) if arguments.vendor else connected_vendors():
        done = _read(vendor, settings.root)
        if done.exit.status == 0:
            return msgspec.json.decode(done.output, type=Topology)
        last = done.errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"the reader {done.exit}"]
        if done.exit.status != ABSENT:
            raise BusyError(f"topo: {vendor} cannot be read: {last[0]}")
        absent.append(f"{vendor}: {last[0]}")
    raise BusyError(f"topo: no accelerator can be read: {'; '.join(absent)}")


def _read(vendor: str, root: str) -> Done:
    """Run the child that asks the library of *vendor*, which may hang; *root* stands before /proc and /sys."""
    command = (*python_module("nodevet.checks.backends.topology"), vendor, str(Path(root).absolute()))
    try:
        return Runner().run(command, READ_SECONDS)
    except RunError as error:
        raise BusyError(f"topo: the driver of {vendor} did not answer: its collector {error}") from error
    except OSError as error:
        raise BusyError(f"topo: no process can be started to read {vendor}: {start_step(error)}") from error
