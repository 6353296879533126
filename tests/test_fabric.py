"""What a device says of its fabric: each bit of NVML's mask has its text, its class and what cures it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest
from fakes.views import GPU, GPU_READINGS, bad, healthy, judge

from nodevet.checks.backends.nvidia.items import slow_items
from nodevet.checks.core.model import WHOLE, Action, FaultClass, Finding, Outcome, Part, Reading, ReadingStatus, Scalar
from nodevet.checks.reference.fabric import FabricFault, fabric_faults, fault_named, words_of_mask

ROWS = fabric_faults()
FINE = 0x51AA
"""Every group of bits says that there is no fault: links, configuration, partition, global fabric manager."""
PREFIX = "NVML_GPU_FABRIC_HEALTH_MASK_"


def found(words: str | None, **changes: bool | Reading) -> dict[str, Finding]:
    """Return what is said of a board that names *words*."""
    view = healthy({("fabric_faults", WHOLE): words, **{(key, WHOLE): value for key, value in changes.items()}})
    return {f.code: f for f in judge("links", view) if f.device == GPU and f.code.startswith("fabric.")}


def values_of_the_library() -> Iterator[tuple[int, int, int, str]]:
    """Yield shift, width, value and name of each value of each group that nvidia-ml-py knows."""
    names = [name for name in vars(pynvml) if name.startswith(PREFIX)]
    groups = [name.removeprefix(f"{PREFIX}SHIFT_") for name in names if name.startswith(f"{PREFIX}SHIFT_")]
    for group in groups:
        shift, width = (getattr(pynvml, f"{PREFIX}{kind}_{group}") for kind in ("SHIFT", "WIDTH"))
        for name in names:
            if name.startswith(f"{PREFIX}{group}_"):
                yield shift, width, getattr(pynvml, name), name


def test_every_value_that_the_library_knows_is_a_fault_or_fine() -> None:
    """A release that names another one has to bring its row."""
    fine = ("_NOT_SUPPORTED", "_NONE")
    good = {"DEGRADED_BW_FALSE", "ROUTE_RECOVERY_FALSE", "ROUTE_UNHEALTHY_FALSE", "ACCESS_TIMEOUT_RECOVERY_FALSE",
            "PARTITION_ASSIGNED_TRUE", "GFM_STATE_CONNECTED"}  # fmt: skip
    bits = {(row.shift, row.width, row.value): row for row in ROWS}
    values = list(values_of_the_library())
    assert len(values) > 25
    for shift, width, value, name in values:
        is_fine = name.endswith(fine) or name.removeprefix(PREFIX) in good
        assert ((shift, width, value) in bits) is not is_fine, name
        if not is_fine:
            assert "NVML_GPU_FABRIC_HEALTH_MASK_" in bits[shift, width, value].source


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_each_fault_of_the_mask_is_told_by_itself(row: object) -> None:
    """Its text, its class, its action and its next step; the healthy twin passes under the same code."""
    fault = fault_named(row.word)  # type: ignore[attr-defined]
    mask = FINE & ~(fault.width << fault.shift) | fault.value << fault.shift
    assert words_of_mask(mask) == fault.word
    configuration = fault.fault_class is FaultClass.CONFIGURATION
    code, other = (
        ("fabric.configuration", "fabric.health") if configuration else ("fabric.health", "fabric.configuration")
    )
    told = found(fault.word)
    finding = told[code]
    assert (finding.outcome, finding.fault_class, finding.action) == (fault.outcome, fault.fault_class, fault.action)
    assert fault.text in finding.message
    assert fault.next_step in finding.message
    assert finding.hard is fault.static
    assert told[other].outcome is Outcome.PASS
    assert found("")[code].outcome is Outcome.PASS


def test_no_reset_is_asked_for_what_is_configuration() -> None:
    """Partition, firmware, place and names of the fabric are written down somewhere: a reset cures none of them."""
    resets = {Action.RESET_DEVICE, Action.DRAIN_RESET, Action.REBOOT, Action.POWER_CYCLE, Action.REPLACE}
    wrong = {row.word for row in ROWS if row.fault_class is FaultClass.CONFIGURATION}
    assert wrong >= {"no_partition", "incompatible_firmware", "wrong_location", "wrong_system", "wrong_chassis"}
    assert all(row.action is Action.INSPECT and "no reset" in row.next_step for row in ROWS if row.word in wrong)
    assert all(row.action in resets for row in ROWS if row.word not in wrong and row.static)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.fault_class is FaultClass.CONFIGURATION], ids=lambda row: row.word
)
def test_links_that_are_down_beside_a_configuration_fault_ask_for_what_cures_that(row: FabricFault) -> None:
    """Of a board in no partition, or whose firmware does not fit, no reset brings up the links."""
    said: dict[tuple[str, Part], Scalar] = {key: False for key in GPU_READINGS if key[0] == "link_active"}
    said |= {("fabric_faults", WHOLE): row.word, ("fabric_state", WHOLE): "completed"}
    (told,) = (f for f in judge("links", healthy(said)) if f.device == GPU and f.code == "link.all_down")
    assert (told.outcome, told.fault_class, told.action) == (Outcome.FAIL, FaultClass.CONFIGURATION, row.action)
    assert row.next_step in told.message
    assert "drain the node" not in told.message
    said[("fabric_faults", WHOLE)] = "too_few_links"
    (told,) = (f for f in judge("links", healthy(said)) if f.device == GPU and f.code == "link.all_down")
    assert (told.fault_class, told.action) == (FaultClass.HARDWARE, Action.DRAIN_RESET)


def test_faults_of_both_classes_are_told_side_by_side() -> None:
    """A degraded fabric on a board without a partition: neither hides the other."""
    told = found("bandwidth_degraded,no_partition,route_unhealthy")
    assert told["fabric.configuration"].outcome is Outcome.FAIL
    assert told["fabric.health"].fault_class is FaultClass.HARDWARE
    assert "bandwidth is degraded; a route of its fabric is unhealthy" in told["fabric.health"].message


def test_what_passes_by_itself_must_be_seen_more_than_once() -> None:
    """A route that is being recovered is no fault yet, unless another one stands."""
    assert not found("route_recovering")["fabric.health"].hard
    assert found("route_recovering,route_unhealthy")["fabric.health"].hard


def test_a_fault_that_no_table_knows_is_told() -> None:
    """A later driver names configurations that this version does not know, or a number is torn: never health, and no
    gate is closed by what nobody understands. It hides nothing that is known."""
    assert words_of_mask(FINE & ~0xF00 | 0xB00) == "configuration_11"
    for mask, words in ((FINE & ~0xF00 | 0xB00, "configuration_11"), (FINE | 3, "bits_0"), (0xFFFF, "bits_14")):
        finding = found(words_of_mask(mask), fabric_healthy=False)["fabric.health"]
        told = (finding.outcome, finding.fault_class, finding.action, finding.hard)
        assert told == (Outcome.WARN, FaultClass.UNKNOWN, Action.INSPECT, False)
        assert words in finding.message
    beside = found("bits_0,route_unhealthy")["fabric.health"]
    assert (beside.outcome, beside.fault_class, beside.hard) == (Outcome.FAIL, FaultClass.HARDWARE, True)


def test_only_a_mask_whose_every_group_says_fine_names_no_fault() -> None:
    """Every mask of the sixteen bits that are known: each bit alone, all together, and both bits of a pair."""
    fine = {0: {0, 2}, 2: {0, 2}, 4: {0, 2}, 6: {0, 2}, 12: {0, 1}, 14: {0, 1}}
    for mask in range(1 << 16):
        well = all(mask >> shift & 3 in values for shift, values in fine.items()) and mask >> 8 & 15 <= 1
        assert (words_of_mask(mask) == "") is well, hex(mask)
    assert words_of_mask(FINE | 1 << 16) == ""  # a group of a later driver, which may say that all is well
    assert words_of_mask(FINE | 3) == "bits_0"
    assert (fault_named("bits_0").fault_class, fault_named("bits_0").action) == (FaultClass.UNKNOWN, Action.INSPECT)


def test_status_that_is_no_answer_of_the_library_fails_no_board() -> None:
    """Of a registration that is completed an empty register says nothing; what the library knows, or may know, does."""
    state = next(item.convert for item in slow_items(0) if item.quantity == "fabric_state")
    told = {status: state(SimpleNamespace(state=3, status=status)) for status in (0, 1, 50, 999)}
    assert told == {0: "completed", 1: "failed", 50: "failed", 999: "failed"}
    for status in (-1, 1000, 65535, 2**32 - 1):
        with pytest.raises(ValueError, match="no answer"):
            state(SimpleNamespace(state=3, status=status))


def test_an_empty_register_is_no_mask() -> None:
    """Ones alone are what a register reads that nothing answers for: no fault, and no health either."""
    with pytest.raises(ValueError, match="empty register"):
        words_of_mask(0xFFFFFFFF)
    said = [item for item in slow_items(0) if item.quantity in ("fabric_healthy", "fabric_faults")]
    assert len(said) == 2
    for item in said:
        with pytest.raises(ValueError, match="empty register"):
            item.convert(SimpleNamespace(healthMask=0xFFFFFFFF))


def test_a_board_that_only_says_whether_there_is_a_fault_is_believed_at_once() -> None:
    """Its own statement is no measurement: one look counts, with or without words for it."""
    for words in ("", None):
        finding = found(words, fabric_healthy=False)["fabric.health"]
        assert (finding.outcome, finding.hard) == (Outcome.FAIL, True)
        assert found(words)["fabric.health"].outcome is Outcome.PASS
    blind = {"fabric_healthy": bad("fabric_healthy", WHOLE, ReadingStatus.ERROR)}
    assert found(None, **blind)["fabric.health"].outcome is Outcome.UNMEASURED
