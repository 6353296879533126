"""Stands in for the prober on a simulated node: results come from the scenario, and no load is ever started."""

from __future__ import annotations

import msgspec

from nodevet.agent.config.settings import LoadSettings
from nodevet.checks.burnin.metrics import figures, verification_state
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Clearing, Instant, Result, ResultState, Snapshot
from nodevet.checks.engine.retest import CONDITIONS, clearing_table
from nodevet.checks.reference.profiles import Probe, load_profile
from nodevet.checks.simulation.faults import KINDS
from nodevet.checks.simulation.node import ProbeFigures

from .node import SimulatedNode

PROBE_DELAY_SECONDS = 3.0
"""How long after a repair, or after a fault that only a probe can see began, a probe runs."""


class SimulatedProber:
    """Stands in for the prober: no load is started, the results come from the scenario.

    A probe runs after the first round, every ``probe_every`` seconds of the scenario, and shortly after a fault ended
    or one began that only a probe can see.
    """

    running = False

    def __init__(self, node: SimulatedNode, clock: Clock) -> None:
        """Schedule the first probe of *node*."""
        self._node = node
        self._clock = clock
        self._revision = -1
        self._due = 0.0
        self._wrong: frozenset[str] = frozenset()
        self.status = ""

    def configure(self, _settings: LoadSettings) -> None:
        """Do nothing: the scenario says when probes run."""

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        return None if self._revision < 0 else self._due

    def tick(self, snapshot: Snapshot | None) -> tuple[Result, ...]:
        """Return the results of a probe that is due."""
        if snapshot is None or not snapshot.agent.ready:
            return ()
        now = self._clock.monotonic()
        if self._revision != self._node.revision:
            self._revision = self._node.revision
            self._due = now + PROBE_DELAY_SECONDS
        if now < self._due:
            return ()
        self._due = now + self._wait()
        self.status = "probes are simulated"
        measured = self._node.probe()
        # After a wrong result a site runs the re-test that disproves it, not the daily probe.
        due, self._wrong = self._wrong, frozenset(entry.device for entry in measured if entry.mismatches)
        probe = load_profile(self._node.profile).probe
        return probe_results(measured, probe, self._clock.instant(), retested=due - self._wrong)

    def found(self) -> tuple[Result, ...]:
        """Return nothing: the results of a scenario come as a whole."""
        return ()

    def stop(self, reason: str) -> None:
        """Do nothing: no load runs."""

    def _wait(self) -> float:
        """Return the seconds until the next probe."""
        scenario, seconds = self._node.scenario, self._node.seconds()
        edges = [fault.until for fault in scenario.faults if fault.until is not None]
        edges += [fault.at for fault in scenario.faults if KINDS[fault.kind].probed]
        waits = [edge + PROBE_DELAY_SECONDS - seconds for edge in edges]
        return min([wait for wait in waits if wait > 0] + [scenario.probe_every])


def probe_results(
    measured: tuple[ProbeFigures, ...], probe: Probe, now: Instant, *, retested: frozenset[str] = frozenset()
) -> tuple[Result, ...]:
    """Return the results of a simulated *probe* that ended *now*, each marked as simulated.

    On devices that are *retested* it is as long as the re-test of a wrong result must be.
    """
    longer = _retest(probe)
    return tuple(_result(entry, longer if entry.device in retested else probe, now) for entry in measured)


def _retest(probe: Probe) -> Probe:
    row = clearing_table()[Clearing.WRONG_RESULT]
    products = probe.products * (row.retest_products_per_wrong or 1)
    return msgspec.structs.replace(probe, products=products, seconds=max(probe.seconds, row.retest_seconds or 0.0))


def _result(entry: ProbeFigures, probe: Probe, now: Instant) -> Result:
    m, n, k = probe.shape
    values: dict[str, float | int | None] = {
        "tflops_median": round(entry.tflops, 3),
        "tflops_p5": round(entry.tflops * 0.985, 3),
        "tflops_spread": 0.02,
        "peak_tflops": probe.peak_tflops,
        "efficiency_ratio": round(entry.tflops / probe.peak_tflops, 4) if probe.peak_tflops else None,
        "gemms_run": probe.products,
        "gemms_verified": probe.products,
        "mismatches": entry.mismatches,
        "verified_fraction": 1.0,
        "mismatch_rate_upper_bound_95": round((3.0 + 2 * entry.mismatches) / probe.products, 6),
        "flop_verified": 2.0 * m * n * k * probe.products,
        "self_test_planted": 3,
        "self_test_found": 3,
        "measured_seconds": probe.seconds,
    }
    verification = verification_state(
        refuted=0, self_test_passed=True, verified=probe.products, mismatches=entry.mismatches
    )
    reports = {"mismatch_reports": ["simulated"]} if entry.mismatches else {}
    return Result(
        workload="gemm",
        devices=(entry.device,),
        state=ResultState.FINISHED,
        started=now,
        ended=now,
        dtype=probe.dtype,
        shape=probe.shape,
        detail="simulated: nothing was computed",
        conditions={"simulated": True, "verification": verification, "unsupported": list(CONDITIONS), **reports},
        metrics=figures(values),
    )
