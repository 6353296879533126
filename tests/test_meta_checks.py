"""Over every check that exists, also those not written yet: no reading, no pass.

For each check, each of its input quantities and each way in which a reading can be missing, no finding whose
evidence names the quantity passes. A check that needs other machinery than readings is held by its own tests.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest
import test_boards
import test_drills
import test_scenarios
from fakes.also_found import declared as also_found_faults
from fakes.calls_reference import items
from fakes.views import BAD, at, failed, healthy, with_samples

from nodevet.checks.core.model import FailureKind, Finding, Outcome, Reading, ReadingStatus
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.registry import Check, discover
from nodevet.checks.engine.view import View

CHECKS = discover()
WITH_INPUTS = [declared for declared in CHECKS if declared.inputs]
EACH_INPUT = [(declared, quantity) for declared in WITH_INPUTS for quantity in declared.inputs]

NO_BASE_UNIT = re.compile(
    "(milli|micro|nano|kilo|mega|giga|kibi|mebi|gibi).+|percent.*|degrees|minutes|hours|days|m?s|[kmg]hz"
)


def spoiled(view: View, quantities: frozenset[str], status: ReadingStatus | None) -> View:
    """Return *view* in which *quantities* have the bad *status* on every device, or are absent where it is None."""

    def spoil(reading: Reading) -> Reading | None:
        if reading.quantity not in quantities:
            return reading
        return Reading(reading.quantity, None, reading.part, status, "for a test") if status else None

    samples = {
        key: msgspec.structs.replace(sample, readings=tuple(filter(None, map(spoil, sample.readings))))
        for key, sample in view.samples.items()
    }
    return msgspec.structs.replace(view, samples=samples)


def findings(declared: Check, view: View) -> list[Finding]:
    """Return what *declared* says of *view* with its default policy."""
    return list(declared.judge(view, declared.policy()))


def passes(declared: Check, view: View) -> list[Finding]:
    """Return what *declared* finds to be well."""
    return [finding for finding in findings(declared, view) if finding.outcome is Outcome.PASS]


def name(value: object) -> str:
    """Return how a parameter is called in the test's id."""
    return value.name if isinstance(value, Check) else str(value)


def test_there_are_checks() -> None:
    """An empty registry would make all of this pass."""
    assert len(CHECKS) >= 10
    assert len(WITH_INPUTS) >= 6


@pytest.mark.parametrize("declared", WITH_INPUTS, ids=name)
def test_every_input_is_looked_at_in_health(declared: Check) -> None:
    """The healthy view holds every input of every check, and its evidence names it: no test below is empty."""
    seen = {quantity for finding in findings(declared, healthy()) for quantity in finding.evidence}
    fallbacks = {"temperature_celsius", "temperature_slowdown_celsius", "temperature_shutdown_celsius"}
    beside_faults = {"partitioned", "utilization_ratio", "energy_joules"}
    assert set(declared.inputs) - seen <= fallbacks | beside_faults
    present = {reading.quantity for sample in healthy().samples.values() for reading in sample.readings}
    assert set(declared.inputs) <= present


def test_every_input_is_read_by_a_backend(repository: Path) -> None:
    """Deleting the item of a reading would else leave its check without input on every node."""
    read = {item.quantity for each in items().values() for item in each}
    host = "".join(path.read_text() for path in (repository / "checks" / "backends" / "host").glob("*.py"))
    read |= {quantity for quantity in QUANTITIES if f'"{quantity}"' in host}
    assert {quantity for _, quantity in EACH_INPUT} - read == set()


def test_every_quantity_has_a_base_unit() -> None:
    """Prometheus' naming rule: a unit is spelled out and has no prefix, and a share is a ratio."""
    assert [key for key in QUANTITIES if any(map(NO_BASE_UNIT.fullmatch, key.split("_")))] == []


@pytest.mark.parametrize("status", [*BAD, None], ids=lambda status: status.value if status else "absent")
@pytest.mark.parametrize(("declared", "quantity"), EACH_INPUT, ids=name)
def test_missing_reading_never_passes(declared: Check, quantity: str, status: ReadingStatus | None) -> None:
    """No finding that rests on the quantity passes."""
    rested = [f for f in passes(declared, spoiled(healthy(), frozenset({quantity}), status)) if quantity in f.evidence]
    assert rested == []


@pytest.mark.parametrize("status", [*BAD, None], ids=lambda status: status.value if status else "absent")
@pytest.mark.parametrize("declared", WITH_INPUTS, ids=name)
def test_without_any_reading_nothing_passes(declared: Check, status: ReadingStatus | None) -> None:
    """A check that sees none of its inputs finds nothing well."""
    assert passes(declared, spoiled(healthy(), frozenset(declared.inputs), status)) == []


@pytest.mark.parametrize("declared", WITH_INPUTS, ids=name)
def test_old_sample_never_passes(declared: Check) -> None:
    """Once the sample is older than its cadence allows, it is no evidence."""
    assert passes(declared, healthy(now=at(3600))) == []


@pytest.mark.parametrize("kind", list(FailureKind))
@pytest.mark.parametrize("declared", WITH_INPUTS, ids=name)
def test_failed_sample_never_passes(declared: Check, kind: FailureKind) -> None:
    """A device that could not be read passes nothing that rests on a reading, and others go on."""
    view = with_samples(healthy(), failed(kind))
    lost = next(iter(view.devices)).id
    assert [f for f in passes(declared, view) if f.device == lost] == []
    before = [f for f in passes(declared, healthy()) if f.device != lost]
    assert len([f for f in passes(declared, view) if f.device != lost]) == len(before)


@pytest.mark.parametrize("declared", WITH_INPUTS, ids=name)
def test_device_that_could_not_be_read_is_told_by_each_check(declared: Check) -> None:
    """None of them passes over it in silence: what it would have looked at is unmeasured."""
    view = with_samples(healthy(), failed(FailureKind.ERROR))
    lost = next(iter(view.devices)).id
    assert {f.outcome for f in findings(declared, view) if f.device == lost} == {Outcome.UNMEASURED}


@pytest.mark.parametrize("declared", CHECKS, ids=name)
def test_healthy_node_has_no_finding_against_it(declared: Check) -> None:
    """The healthy twin of every fault is quiet."""
    against = [f for f in findings(declared, healthy()) if f.outcome not in (Outcome.PASS, Outcome.SKIPPED)]
    assert against == []


@pytest.mark.parametrize("declared", CHECKS, ids=name)
def test_keys_are_looked_at_once_per_round(declared: Check) -> None:
    """Two findings of one key in one round would confirm or clear each other."""
    keys = [f.key for f in findings(declared, healthy())]
    doubled = {key for key, group in itertools.groupby(sorted(keys)) if len(list(group)) > 1}
    assert doubled == set()


@pytest.mark.parametrize("declared", CHECKS, ids=name)
def test_finding_names_its_check_and_rests_on_declared_inputs(declared: Check) -> None:
    """What a check looks at is what it declares, so that the documentation can be made from it."""
    for finding in findings(declared, healthy()):
        assert finding.check == declared.name
        assert finding.message
        assert set(finding.evidence) <= set(declared.inputs)
        assert set(finding.evidence) <= set(QUANTITIES)
        assert not finding.evidence or finding.evidence_time is not None


def test_what_a_check_also_finds_is_a_fault_that_a_test_plants() -> None:
    """A misspelt name would be expected nowhere."""
    cases = {case.name for case in test_scenarios.CASES}
    planted = {*test_drills.NAMES, *test_boards.HOT_MEMORY, *cases, test_scenarios.EMPTY_LIMITS}
    assert {fault for fault, _, _ in also_found_faults()} <= planted


@pytest.mark.parametrize("declared", CHECKS, ids=name)
def test_policy_is_closed_and_explains_itself(declared: Check) -> None:
    """Every field has a default and a description, and an unknown key is refused."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"no_such_key": 1}, declared.policy)
    described = msgspec.json.schema(declared.policy)["$defs"][declared.policy.__name__]["properties"]
    undescribed = [key for key, schema in described.items() if "description" not in str(schema)]
    assert undescribed == []
    assert declared.policy() == msgspec.convert({}, declared.policy)


def test_every_code_is_written_one_way(repository: Path) -> None:
    """Codes are lower-case words with dots, as people type them behind ``explain`` and ``ack``."""
    codes = {finding.code for declared in CHECKS for finding in findings(declared, healthy())}
    source = "".join(path.read_text() for path in (repository / "checks" / "health").glob("*.py"))
    codes |= set(re.findall(r'code="([^"{}]+)"', source))
    assert [code for code in sorted(codes) if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", code)] == []
