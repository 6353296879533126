"""The speed of a load: a device below the floor or slower than its siblings warns, a healthy spread does not."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, burn_in, healthy, judge, of

from nodevet.checks.core.model import Finding, Outcome, ResultState
from nodevet.checks.core.siblings import SiblingLimit, slower_devices
from nodevet.checks.reference.tables import load_table

PASS, WARN, SKIPPED = Outcome.PASS, Outcome.WARN, Outcome.SKIPPED
LIMITS = load_table("sibling_limits.csv", SiblingLimit)
SPREAD = 0.005


T4 = {"architecture": "sm75"}
"""Its power limit of 70 W holds a healthy one below 0.4 of its peak."""


def large(**metrics: Any) -> Any:
    """Return a result of a large bf16 load with *metrics*."""
    conditions = {"architecture": "sm90"}
    return msgspec.structs.replace(burn_in(**metrics), dtype="bf16", shape=(8192, 8192, 8192), conditions=conditions)


def test_device_at_a_fifth_of_its_peak_warns() -> None:
    """Verified to the last bit, and yet of no use: 22 % of the peak."""
    findings = judge("burn-in-rate", healthy(results=(large(efficiency_ratio=0.22, tflops_median=220.0),)))
    finding = of(findings, "burnin.rate_low")
    assert (finding.outcome, finding.gates, finding.value) == (WARN, False, 0.22)
    assert "22 % of the specification's peak, the limit is 40 %" in finding.message


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (large(efficiency_ratio=0.74, tflops_median=730.0), PASS),
        (large(efficiency_ratio=0.4, tflops_median=400.0), PASS),
        (msgspec.structs.replace(large(efficiency_ratio=0.3, tflops_median=20.0), conditions=T4), SKIPPED),
        (large(efficiency_ratio=None, tflops_median=400.0), SKIPPED),
        (msgspec.structs.replace(large(efficiency_ratio=0.2, tflops_median=1.0), shape=(512, 512, 4096)), SKIPPED),
        (msgspec.structs.replace(large(efficiency_ratio=0.2, tflops_median=1.0), dtype="fp64"), SKIPPED),
        (
            msgspec.structs.replace(large(efficiency_ratio=0.2, tflops_median=1.0), state=ResultState.INTERRUPTED),
            SKIPPED,
        ),
    ],
)
def test_rate_is_judged_where_a_healthy_one_is_known(result: Any, outcome: Outcome) -> None:
    """A small product, an unknown peak and a load that did not end tell nothing."""
    assert of(judge("burn-in-rate", healthy(results=(result,))), "burnin.rate_low").outcome is outcome


def test_limit_of_the_site_counts() -> None:
    """A site that knows its boards asks for more."""
    result = large(efficiency_ratio=0.6, tflops_median=600.0)
    findings = judge("burn-in-rate", healthy(results=(result,)), least_efficiency_ratio=0.7)
    assert of(findings, "burnin.rate_low").outcome is WARN


def node(
    spread: float, devices: int = 8, formats: int = 3, seed: int = 0, slow: tuple[float, ...] = ()
) -> dict[str, list[float]]:
    """Return the rates of a node whose devices differ by *spread*, the first ones slower by *slow*."""
    source = random.Random(seed)  # noqa: S311, a simulation
    chips = [source.gauss(0, spread) for _ in range(devices)]
    return {
        f"gpu{index}": [
            rate * (1 + chip) * (1 - (slow[index] if index < len(slow) else 0)) for rate in (700, 600, 1300)[:formats]
        ]
        for index, chip in enumerate(chips)
    }


@pytest.mark.parametrize("spread", [0.0, 0.003, 0.01, 0.05])
def test_healthy_nodes_raise_no_alarm(spread: float) -> None:
    """Of 2000 healthy nodes at most a handful alarm, however far apart their devices are: 1 of 1000 is allowed."""
    alarms = sum(bool(slower_devices(node(spread, seed=seed), LIMITS, SPREAD)) for seed in range(2000))
    assert alarms <= 7  # the chance of more than 7 at 1 in 1000 is below 1 in 1000


@pytest.mark.parametrize(("spread", "named"), [(0.0, 1.0), (0.005, 0.99), (0.0075, 0.85)])
def test_a_device_that_is_ten_percent_slow_is_named(spread: float, named: float) -> None:
    """Alone among eight. At a spread of 1 % it is named in two of three nodes (docs/explanation/verified-load.md)."""
    found = [slower_devices(node(spread, seed=seed, slow=(0.1,)), LIMITS, SPREAD) for seed in range(400)]
    assert sum([each.device for each in some] == ["gpu0"] for some in found) >= named * len(found)


def test_two_slow_devices_do_not_hide_each_other() -> None:
    """Each widens the spread of the others, so both are set aside."""
    found = slower_devices(node(0.004, slow=(0.1, 0.12)), LIMITS, SPREAD)
    assert {each.device for each in found} == {"gpu0", "gpu1"}
    assert all(0.08 < each.below_ratio < 0.14 for each in found)


def test_devices_that_are_almost_equal_are_equal() -> None:
    """Seven devices with the same rate and one that is 2 % slower: less than the least spread lets expect."""
    assert slower_devices(node(0.0, slow=(0.02,)), LIMITS, SPREAD) == ()


@pytest.mark.parametrize("devices", [1, 2, 5, 17])
def test_too_few_or_unknown_numbers_of_devices_are_not_compared(devices: int) -> None:
    """Among five devices a wide spread and a slow device look alike."""
    assert slower_devices(node(0.0, devices=devices, slow=(0.5,)), LIMITS, SPREAD) == ()


def test_devices_that_ran_different_workloads_are_not_compared() -> None:
    """A device without one of the formats has no rate beside those of the others."""
    rates = node(0.0, slow=(0.5,))
    rates["gpu3"] = rates["gpu3"][:2]
    assert slower_devices(rates, LIMITS, SPREAD) == ()


def siblings(load: str = "a", model: str = "") -> dict[str, Finding]:
    """Return the findings of eight boards, of which the third is 10 % slower, by board.

    The first four ran in *load*, the others in ``a``; if *model* is given, the last three are of that.
    """
    view = healthy()
    board = next(device for device in view.devices if device.id == GPU)
    boards = tuple(
        msgspec.structs.replace(board, id=f"gpu{index}", model=model if model and index > 4 else board.model)
        for index in range(8)
    )
    results = tuple(
        msgspec.structs.replace(
            large(tflops_median=630.0 if index == 2 else 700.0),
            devices=(f"gpu{index}",),
            conditions={"load": load if index < 4 else "a"},
        )
        for index in range(8)
    )
    found = judge("burn-in-rate", msgspec.structs.replace(view, devices=boards, results=results))
    return {finding.device: finding for finding in found if finding.code == "burnin.slower_than_siblings"}


def test_slower_device_warns_with_both_figures() -> None:
    """The finding names how much slower the device is, and how far apart its siblings are; the others pass."""
    told = siblings()
    assert {device: finding.outcome for device, finding in told.items()} == {
        f"gpu{index}": WARN if index == 2 else PASS for index in range(8)
    }
    assert "10.0 % slower than its siblings in the same load, which differ by 0.5 %" in told["gpu2"].message
    assert not told["gpu2"].gates


@pytest.mark.parametrize("told", [siblings("b"), siblings(model="another")], ids=["two loads", "two models"])
def test_siblings_are_devices_of_one_model_in_one_load(told: dict[str, Finding]) -> None:
    """Else there are too few: what was not compared does not pass."""
    assert {finding.outcome for finding in told.values()} == {SKIPPED}
