"""The limits of checks/reference/sibling_limits.csv: one of 2000 healthy nodes passes each by chance.

The table was computed by ``limit`` with four million nodes. The statistic depends neither on the mean nor on the width
of the distribution, so the rates are drawn from the standard normal one.
"""

from __future__ import annotations

import math

import pytest
from fakes.needs_torch import NO_TORCH  # skips this file where torch is not installed

from nodevet.checks.burnin.library import Tensor, torch
from nodevet.checks.core.siblings import SiblingLimit
from nodevet.checks.reference.tables import load_table

NODES, ALARMS = 400_000, 1 / 2000
__all__ = ["NO_TORCH"]

ROWS = load_table("sibling_limits.csv", SiblingLimit)


def deviations(rates: Tensor, slow: int) -> Tensor:
    """Return for each row of *rates* (nodes, devices) how far the *slow* slowest are below the others."""
    ordered = rates.sort(1).values
    others = ordered[:, slow:]
    width = others.std(1) * math.sqrt(1 + 1 / others.shape[1])
    return (others.mean(1) - ordered[:, slow - 1]) / width


def limit(devices: int, slow: int, nodes: int = NODES) -> float:
    """Return the limit for so many *devices*, by a simulation of *nodes*."""
    source = torch.Generator().manual_seed(devices)
    rates = torch.randn(nodes, devices, dtype=torch.float64, generator=source)
    return float(deviations(rates, slow).topk(int(nodes * ALARMS)).values[-1])


@pytest.mark.parametrize("row", [row for row in ROWS if row.devices in (6, 8, 16)], ids=str)
def test_limit_is_that_of_one_healthy_node_in_two_thousand(row: SiblingLimit) -> None:
    """Within the error of a simulation of 400,000 nodes, of which 200 are beyond the limit."""
    assert limit(row.devices, row.slow) == pytest.approx(row.limit, rel=0.08)


def test_every_number_of_devices_has_its_limits() -> None:
    """From six to sixteen devices, and two slow ones among eight or more."""
    assert {(row.devices, row.slow) for row in ROWS} == {
        (devices, slow) for devices in range(6, 17) for slow in (1, 2) if slow == 1 or devices >= 8
    }
