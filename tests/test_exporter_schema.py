"""The public JSON: its words and nulls, and what is never in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.snapshots import (
    EVERY_STATE,
    at,
    burn_in,
    cpu_node,
    degraded_node,
    failed_node,
    gpu_id,
    gpu_node,
    open_episode,
    starting_node,
    unknown_node,
)

from nodevet.checks.core.model import (
    Action,
    DeviceKind,
    EpisodeState,
    FaultClass,
    Finding,
    Outcome,
    ReaderState,
    ResultState,
    Snapshot,
    State,
)
from nodevet.exporters.documents.schema import burn_in_document, encode, status_document
from nodevet.exporters.documents.types import StatusDocument

STATUS_FIELDS = {
    "schema", "node", "scope", "simulated", "verdict", "reason", "action", "oldest_evidence", "devices", "findings",
}  # fmt: skip
DEVICE_FIELDS = {"id", "vendor", "kind", "model", "pci", "serial", "verdict"}
FINDING_FIELDS = {
    "check", "code", "device", "part", "outcome", "fault_class", "state", "message", "value", "unit", "limit",
    "action", "first_seen", "last_seen", "count",
}  # fmt: skip
RESULT_FIELDS = {"workload", "device", "dtype", "shape", "metric", "value", "unit", "conditions", "verdict"}


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the status of *snapshot* as a reader of JSON gets it."""
    document: dict[str, Any] = json.loads(encode(status_document(snapshot)))
    return document


@pytest.mark.parametrize("state", EVERY_STATE, ids=lambda state: state.value)
def test_every_promised_field_is_there(state: State) -> None:
    """What others rely on is in every status, whatever the state."""
    document = as_json(EVERY_STATE[state]())
    assert document.keys() >= STATUS_FIELDS
    assert all(device.keys() >= DEVICE_FIELDS for device in document["devices"])
    assert all(finding.keys() >= FINDING_FIELDS for finding in document["findings"])
    assert all(result.keys() >= RESULT_FIELDS for result in document["results"])


def test_a_fault_is_told_with_all_its_words() -> None:
    """The lost accelerator: code, class, state, action, times and count."""
    (finding,) = as_json(failed_node())["findings"]
    assert (finding["code"], finding["device"], finding["part"]) == ("nvidia.xid.79", gpu_id(5), None)
    assert (finding["outcome"], finding["fault_class"], finding["state"]) == ("fail", "hardware", "open")
    assert (finding["action"], finding["count"]) == ("power_cycle", 3)
    assert (finding["value"], finding["limit"]) == (None, None)
    assert finding["first_seen"] == "2026-11-20T09:59:30.000Z"


def test_a_measurement_is_told_with_its_limit() -> None:
    """The hot accelerator: sensor, value, unit, and the limit with its source."""
    (finding,) = as_json(degraded_node())["findings"]
    assert (finding["part"], finding["value"], finding["unit"]) == ("sensor core", 3, "celsius")
    assert finding["limit"] == {"op": "<=", "value": 5.0, "source": "table limits.csv thermal.margin"}


def test_what_did_not_pass_and_has_no_episode_is_told_once() -> None:
    """An unconfirmed look is listed without a state; one that an episode stands for is not listed again."""
    lone = Finding(check="power", code="power.high", outcome=Outcome.WARN, message="m", device=gpu_id(1))
    confirmed = failed_node()
    snapshot = msgspec.structs.replace(confirmed, findings=(*confirmed.findings, lone))
    findings = as_json(snapshot)["findings"]
    assert [(finding["code"], finding["state"]) for finding in findings] == [
        ("nvidia.xid.79", "open"),
        ("power.high", None),
    ]
    assert findings[1]["first_seen"] is None


def test_the_gravest_finding_comes_first() -> None:
    """A reader of the first entry reads the worst."""
    looks = [
        Finding(check="c", code=f"c.{outcome.value}", outcome=outcome, message="m")
        for outcome in (Outcome.WARN, Outcome.PASS, Outcome.UNMEASURED, Outcome.FAIL, Outcome.SKIPPED)
    ]
    episodes = tuple(open_episode(look) for look in looks[:1])
    document = as_json(gpu_node(findings=tuple(looks), episodes=episodes))
    assert [finding["code"] for finding in document["findings"]] == ["c.warn", "c.fail", "c.unmeasured"]


def test_cleared_episodes_are_history() -> None:
    """What was disproved is not told as a finding."""
    snapshot = failed_node()
    cleared = msgspec.structs.replace(snapshot.episodes[0], state=EpisodeState.CLEARED)
    assert as_json(msgspec.structs.replace(snapshot, episodes=(cleared,), findings=()))["findings"] == []


@pytest.mark.parametrize("build", [gpu_node, failed_node, unknown_node])
def test_no_process_is_in_the_document(build: Any) -> None:
    """Neither pids that hold a device, nor the readers' own, nor the kernel's line that may name one."""
    text = encode(status_document(build())).decode()
    assert "31337" not in text
    assert "4242" not in text
    assert "NVRM" not in text


def test_before_the_first_judgement_nothing_is_claimed() -> None:
    """A starting agent says unknown, and null for evidence that is not there."""
    document = as_json(starting_node())
    assert (document["verdict"], document["oldest_evidence"], document["results"]) == ("unknown", None, [])


def test_a_device_that_was_never_judged_is_unknown() -> None:
    """Absence of a verdict is told, not taken for ok."""
    snapshot = gpu_node(device_verdicts={})
    assert {device["verdict"] for device in as_json(snapshot)["devices"]} == {"unknown"}


def test_a_burn_in_counts_what_it_verified() -> None:
    """Products and mismatches of all devices are summed, each figure is an entry."""
    results = (burn_in("cpu-0", 1.4, 0.7), burn_in("cpu-1", 1.4, 0.7, wrong=2))
    document = json.loads(encode(burn_in_document(cpu_node(), plan="probe", results=results)))
    assert (document["schema"], document["plan"]) == ("nodevet.burn-in/1", "probe")
    assert document["verified"] == {"gemms": 180_224, "mismatches": 2}
    rates = [entry for entry in document["results"] if entry["metric"] == "tflops_median"]
    assert [(entry["device"], entry["value"], entry["unit"]) for entry in rates] == [
        ("cpu-0", 1.4, "tflops"),
        ("cpu-1", 1.4, "tflops"),
    ]


def test_a_load_that_died_has_an_entry() -> None:
    """A workload without figures is not left out: its state and why are there, its value is null."""
    died = msgspec.structs.replace(burn_in("cpu-0", 1, 1), state=ResultState.DIED, metrics=(), detail="signal 9")
    (entry,) = json.loads(encode(burn_in_document(cpu_node(), plan="probe", results=(died,))))["results"]
    assert (entry["metric"], entry["value"], entry["state"], entry["detail"]) == ("none", None, "died", "signal 9")


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome.PASS, "ok"),
        (Outcome.WARN, "degraded"),
        (Outcome.FAIL, "failed"),
        (Outcome.UNMEASURED, "unknown"),
        (Outcome.SKIPPED, None),
    ],
)
def test_a_result_has_the_verdict_of_its_check(outcome: Outcome, verdict: str | None) -> None:
    """What the check of burn-in results said of the device; null where it said nothing."""
    look = Finding(check="burn-in", code="burnin.mismatch", outcome=outcome, message="m", device="cpu-0")
    document = burn_in_document(msgspec.structs.replace(cpu_node(), findings=(look,)), plan="probe")
    verdicts = {entry.device: entry.verdict for entry in document.results}
    assert verdicts == {"cpu-0": verdict, "cpu-1": None}


def test_times_are_rfc_3339_in_utc() -> None:
    """A time can be read by anything that reads times."""
    assert as_json(gpu_node())["time"] == "2026-11-20T10:00:00.000Z"
    assert status_document(gpu_node(time=at(0.25))).time == "2026-11-20T09:59:59.750Z"


@pytest.mark.parametrize(
    "words",
    [State, Action, FaultClass, ReaderState, ResultState, DeviceKind, EpisodeState],
    ids=lambda words: words.__name__,
)
def test_every_word_is_in_the_reference_page(repository: Path, words: Any) -> None:
    """A word that a reader may meet is documented."""
    page = (repository / "docs" / "reference" / "status-json.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)`", page)) | {"cleared"}
    assert {word.value for word in words} - documented == set()


def test_every_field_is_in_the_reference_page(repository: Path) -> None:
    """A field of either document is documented."""
    page = (repository / "docs" / "reference" / "status-json.md").read_text()
    documented = set(re.findall(r"`(?:[a-z]+\[\]\.)?([a-z_]+)`", page))
    for document in (as_json(failed_node()), json.loads(encode(burn_in_document(cpu_node(), plan="p")))):
        fields = set(document)
        for name in ("devices", "findings", "checks", "readers", "results"):
            fields |= {field for entry in document.get(name, [])[:1] for field in entry}
        assert fields | set(document["agent"]) <= documented, fields - documented


def test_the_document_can_be_read_back() -> None:
    """The struct decodes what it encoded, so that a client may use it."""
    document = status_document(failed_node())
    again = msgspec.json.decode(encode(document), type=StatusDocument)
    assert (again.verdict, again.findings[0].code) == ("failed", "nvidia.xid.79")


def test_curves_of_results_are_series_and_told_once() -> None:
    """A curve that a result carries leaves the conditions, which stand beside every figure, and becomes a series."""
    curved = burn_in("cpu-0", 1.4, 0.7)
    curved = msgspec.structs.replace(
        curved, conditions={**curved.conditions, "curves": {"tflops": [[0, 1.3], [2, 1.4]]}}
    )
    document = json.loads(encode(burn_in_document(cpu_node(), plan="probe", results=(curved,))))
    assert document["series"] == [
        {"device": "cpu-0", "quantity": "tflops", "points": [[0.0, 1.3], [2.0, 1.4]], "dtype": "bfloat16"}
    ]
    assert all("curves" not in entry["conditions"] for entry in document["results"])
    assert document["results"][0]["conditions"]["verification"] == "verified"
