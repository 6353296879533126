"""Run the daemon: read devices, judge them, publish the verdict. SIGTERM stops it, SIGHUP reloads the configuration."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from nodevet.agent.config.load import SIMULATED_FOLDER, directories
from nodevet.agent.terminal.outlet import Outlet
from nodevet.agent.terminal.output import let_go_of_output
from nodevet.checks.burnin.launch import burn_command
from nodevet.checks.core.errors import UsageError
from nodevet.checks.reference.profiles import load_profile, profile_names

from . import _options as options

if TYPE_CHECKING:
    from nodevet.agent.load.run import Spawn
    from nodevet.agent.simulated.node import Simulate
    from nodevet.agent.store.site_marks import SiteMarks

SUMMARY = "run the daemon"

STANDARD_ERROR = 2

ALLOCATIONS_PER_COLLECTION = 20_000
"""Objects that a generation gains before the garbage collector looks for cycles (Python's default is 700).

A round makes and frees some thousand objects without a cycle, so that the default cost a fifth of the processor time.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet agent``."""
    parser.add_argument("--listen", metavar="HOST:PORT", help="metrics and status page (default: 127.0.0.1:10917)")
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="seconds between readings (default: 10)")
    parser.add_argument("--node-name", metavar="NAME", help="name of this node in all output (default: the host name)")
    parser.add_argument(
        "--simulate",
        metavar="PROFILE",
        help=f"simulate a node of this profile; this machine is not read: {', '.join(profile_names())}",
    )
    parser.add_argument("--scenario", metavar="FILE", help="timeline of faults of the simulated node (TOML)")
    options.add_places(parser)


def run(arguments: argparse.Namespace, *, stands_for_kernel: bool = False, spawn: Spawn = burn_command) -> int:
    """Run until SIGTERM or SIGINT; exit 0 after a clean stop.

    For fake nodes alone: *stands_for_kernel* (the kernel log is a file) and *spawn* (the probes are scripted).
    """
    # structlog imports rich for its console where it can, which takes 5 MiB: it is unimportable in this process. The
    # pickle error is what structlog raises where a logger is to be pickled.
    cast("dict[str, ModuleType | None]", sys.modules).setdefault("rich", None)
    from nodevet.agent.config.settings import Configuration
    from nodevet.checks.core.later import SELDOM, loaded_later

    with loaded_later(*SELDOM, "pickle", known={("structlog._output", "pickle.PicklingError"): TypeError}):
        from nodevet.agent.daemon.loop import Daemon
    from nodevet.agent.daemon.reload import Reread
    from nodevet.checks.core.clock import SystemClock

    profile: str | None = arguments.simulate
    if profile is not None:
        load_profile(profile)
        _be_simulated(arguments, profile)
    elif arguments.scenario:
        raise UsageError("--scenario: requires --simulate PROFILE")

    watch = _Watch()

    def load() -> Configuration:
        settings = options.configuration(
            arguments,
            watch=watch.over,
            agent__listen=arguments.listen,
            agent__interval_seconds=arguments.interval,
            agent__node_name=arguments.node_name,
        )
        if not profile:
            return settings
        from nodevet.agent.simulated.node import simulated_configuration

        return simulated_configuration(settings, profile)

    faulthandler.enable(STANDARD_ERROR)  # a watchdog ends a loop that stands still by SIGABRT: this says where it stood
    settings, outlet = load(), Outlet()
    _prepare()
    simulate = _simulate(profile, arguments.scenario) if profile else None

    def tell(line: str) -> None:
        # Whoever started the agent may have gone, or no longer read: it goes on.
        outlet.put(sys.stdout.fileno(), f"{line}\n")

    daemon = Daemon(
        settings,
        SystemClock(settings.agent.root),
        reload=Reread(load),
        outlet=outlet,
        say=tell,
        simulate=simulate,
        stands_for_kernel=stands_for_kernel,
        spawn=spawn,
        watch=watch.over(Path(settings.agent.runtime_dir)),
    )
    code = daemon.run()
    watch.close()
    outlet.close()
    let_go_of_output()
    return code


def _simulate(profile: str, scenario: str | None) -> Simulate:
    from nodevet.agent.simulated.node import Simulate

    return Simulate(profile, Path(scenario) if scenario else None)


def _prepare() -> None:
    """Take what may be refused, and load what the agent needs until its end."""
    from nodevet.checks.burnin.plan import load_plans
    from nodevet.checks.reference.tables import keep_tables
    from nodevet.checks.system.descriptors import raise_descriptor_limit
    from nodevet.checks.system.procfs import refuse_foreign_proc
    from nodevet.checks.system.threads import prove_threads, share_one_heap

    raise_descriptor_limit()
    refuse_foreign_proc()
    share_one_heap()
    prove_threads()
    keep_tables()
    load_plans()
    gc.freeze()  # what was imported stays until the end: no collection need look at it again
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)


class _Watch:
    """The watch over code of a site, from before the first import to the end of the agent."""

    def __init__(self) -> None:
        self._marks: SiteMarks | None = None

    def over(self, runtime: Path) -> SiteMarks:
        """Return the watch in *runtime*; a later configuration that names another directory waits for a restart."""
        from nodevet.agent.daemon.log import make_logger
        from nodevet.agent.store.site_marks import SiteMarks

        if self._marks is None:
            # Not through the outlet: its thread may not have written the line when an import ends the process.
            self._marks = SiteMarks(runtime, lambda line: make_logger().warning("problem", detail=line))
        return self._marks

    def close(self) -> None:
        if self._marks is not None:
            self._marks.close()


def _be_simulated(arguments: argparse.Namespace, profile: str) -> None:
    """Give a simulated node a name and directories of its own, whatever the configuration gives the real one."""
    places = directories(os.environ, os.geteuid())
    arguments.node_name = arguments.node_name or f"simulated-{profile}"
    arguments.state_dir = arguments.state_dir or str(places.state / SIMULATED_FOLDER / profile)
    arguments.runtime_dir = arguments.runtime_dir or str(places.runtime / SIMULATED_FOLDER / profile)
