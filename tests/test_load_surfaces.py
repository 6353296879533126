"""What a load proved, on every surface: document, report, page and metrics say the same as the one function."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from fakes.page_nodes import NODES
from fakes.reports import from_snapshot
from fakes.snapshots import burn_in, cpu_node, open_episode

from nodevet.agent.terminal.text import status_text, verdict_words
from nodevet.checks.core.model import (
    Clearing,
    EpisodeState,
    FaultClass,
    Finding,
    Outcome,
    Result,
    ResultState,
    Snapshot,
    State,
)
from nodevet.checks.engine.completeness import PLANNED, account
from nodevet.checks.engine.retest import LatestResults, shown_by
from nodevet.checks.engine.verdicts import narrowed
from nodevet.exporters.documents.schema import burn_in_document, encode, status_document
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.report.document import read_document
from nodevet.exporters.report.render import render, render_file
from nodevet.exporters.web.page.render import StatusPage


def node(*results: Result) -> Snapshot:
    """Return a healthy node with the *results* of a load."""
    named = (msgspec.structs.replace(each, conditions={**each.conditions, "load": "one"}) for each in results)
    return msgspec.structs.replace(cpu_node(), results=tuple(named))


def render_page(snapshot: Snapshot) -> str:
    """Return the status page of *snapshot*."""
    return StatusPage(lambda: snapshot.time).render(snapshot).decode()


def metrics_of(snapshot: Snapshot) -> str:
    """Return the metrics page in detail."""
    return MetricsPage(detail=True).render(snapshot).decode()


GOOD = burn_in("cpu-0", 1.4, 0.7)
OTHER = burn_in("cpu-1", 1.4, 0.7)
STOPPED = msgspec.structs.replace(OTHER, state=ResultState.INTERRUPTED, metrics=(), detail="a job came")
LACKING = msgspec.structs.replace(
    GOOD, dtype="fp8_e4m3", state=ResultState.REFUSED, metrics=(), conditions={"refusal": "format"}, detail="no units"
)
ASKED = msgspec.structs.replace(LACKING, conditions={"refusal": "format", "asked": True})
WRONG = msgspec.structs.replace(burn_in("cpu-1", 1.4, 0.7, wrong=3), state=ResultState.DIED, detail="SIGSEGV")
MISMATCH = Finding(
    check="burn-in",
    code="burnin.mismatch",
    device="cpu-1",
    outcome=Outcome.FAIL,
    fault_class=FaultClass.HARDWARE,
    clearing=Clearing.WRONG_RESULT,
    message="3 wrong",
    shown=(shown_by(WRONG),),
)
NOTHING = msgspec.structs.replace(
    OTHER,
    metrics=tuple(
        msgspec.structs.replace(metric, value=0) if metric.name == "gemms_verified" else metric
        for metric in OTHER.metrics
    ),
)

LOADS = {
    "all verified": ((GOOD, OTHER), State.OK),
    "one lacks a format": ((GOOD, OTHER, LACKING), State.OK),
    "somebody asked for it": ((GOOD, OTHER, ASKED), State.UNKNOWN),
    "one was stopped": ((GOOD, STOPPED), State.UNKNOWN),
    "one verified nothing": ((GOOD, NOTHING), State.UNKNOWN),
    "one was wrong and died": ((GOOD, WRONG), State.FAILED),
}


@pytest.mark.parametrize("name", LOADS)
def test_every_surface_says_what_a_load_proved(name: str) -> None:
    """One function decides; nothing is green beside it."""
    results, state = LOADS[name]
    snapshot = node(*results)
    assert account((), snapshot.results).state is state

    document = burn_in_document(snapshot, plan="quick")
    assert document.verdict == state.value
    assert document.completeness is not None
    assert document.completeness.state == {"ok": "complete", "unknown": "incomplete", "failed": "wrong"}[state.value]
    for page in (render(from_snapshot(snapshot, plan="quick")), render_file(encode(document))):
        assert f'<section class="verdict {state.value}"' in page
        assert f'id="verdict">{state.value}</p>' in page
        assert ("Not verified" in page) is (name != "all verified")

    section = re.search(r'id="burn-in-name".*?</table>', render_page(snapshot), re.DOTALL)
    assert section is not None
    badges = re.findall(r'class="badge ([a-z]+)"', section[0])
    assert badges[0] == state.value

    metrics = metrics_of(snapshot)
    assert f"nodevet_burnin_complete {float(state is State.OK)}\n" in metrics
    passed = re.findall(r"nodevet_burnin_passed\{.*?\} (\d)", metrics)
    assert passed.count("1") == document.completeness.verified


def test_no_row_of_a_load_is_green_that_was_not_verified() -> None:
    """A format that was stopped or refused, beside one that passed on the same device: before, its row said ``ok``."""
    finding = msgspec.structs.replace(MISMATCH, device="cpu-0", outcome=Outcome.PASS, message="none wrong", shown=())
    stopped = msgspec.structs.replace(STOPPED, devices=("cpu-0",), dtype="bf16")
    asked = msgspec.structs.replace(ASKED, dtype="int8")
    wrong = msgspec.structs.replace(WRONG, devices=("cpu-0",), dtype="fp64")
    snapshot = msgspec.structs.replace(node(GOOD, stopped, LACKING, asked, wrong), findings=(finding,))
    for document in (burn_in_document(snapshot, plan="quick"), status_document(snapshot)):
        verdicts = {(entry.dtype, entry.verdict) for entry in document.results}
        assert verdicts == {
            (GOOD.dtype, "ok"),
            ("bf16", "unknown"),
            ("fp8_e4m3", None),
            ("int8", "unknown"),
            ("fp64", "failed"),
        }


@pytest.mark.parametrize("names", [("burn-in",), ("burn-in", "thermal"), ("thermal",)])
@pytest.mark.parametrize("unproved", [(), (STOPPED,), (ASKED,), (LACKING,)])
def test_the_check_of_loads_is_no_better_than_the_last_one(
    names: tuple[str, ...], unproved: tuple[Result, ...]
) -> None:
    """Alone or among others; a check of something else does not answer for loads."""
    snapshot = node(GOOD, *unproved)
    found = [
        Finding(check=name, code=f"{name}.good", outcome=Outcome.PASS, message="good", device="cpu-0") for name in names
    ]
    alone = narrowed(msgspec.structs.replace(snapshot, findings=tuple(found)), names)
    is_proved = unproved in ((), (LACKING,)) or "burn-in" not in names
    assert alone.verdict.state is (State.OK if is_proved else State.UNKNOWN)
    if not is_proved:
        assert alone.verdict.reason.startswith("incomplete: 1 of 2 planned formats are not verified: ")
        assert alone.device_verdicts[unproved[0].devices[0]].state is State.UNKNOWN


def test_the_check_of_loads_leaves_what_was_wrong_to_its_finding() -> None:
    """A person may have acknowledged it. What else was not proved is told as ever."""
    alone = narrowed(msgspec.structs.replace(node(GOOD, WRONG), findings=(PASSED,)), ("burn-in",))
    assert alone.verdict.state is State.OK
    stopped = msgspec.structs.replace(STOPPED, dtype="int8")
    alone = narrowed(msgspec.structs.replace(node(GOOD, WRONG, stopped), findings=(PASSED,)), ("burn-in",))
    assert alone.verdict.state is State.UNKNOWN


PASSED = Finding(check="burn-in", code="burnin.mismatch", outcome=Outcome.PASS, message="good", device="cpu-0")
IN_PART = msgspec.structs.replace(GOOD, detail="in part: a quota leaves half of it", conditions={"left_out": "half"})
BLIND = msgspec.structs.replace(GOOD, conditions={"verification": "unmeasured: 9 of 10 planted faults found"})


@pytest.mark.parametrize("result", [STOPPED, ASKED, WRONG, IN_PART, BLIND])
def test_status_on_the_command_line_says_why_a_load_proved_nothing(result: Result) -> None:
    """A load of half a device, or whose checks are blind, verified as many products as another one."""
    why = result.detail or result.conditions["verification"]
    assert why in status_text(status_document(node(result)))
    good = status_text(status_document(node(msgspec.structs.replace(GOOD, conditions={"verification": "verified"}))))
    assert "0 wrong" in good
    assert "0 wrong;" not in good


def test_a_wrong_result_of_a_load_that_died_is_in_the_metrics_and_on_the_page() -> None:
    """It is not left out because its load did not finish."""
    snapshot = node(GOOD, WRONG)
    metrics = MetricsPage().render(snapshot).decode()
    assert re.search(r'nodevet_burnin_mismatches\{[^}]*device="cpu-1"[^}]*\} 3\.0\n', metrics)
    assert "3 wrong; died: SIGSEGV" in render_page(snapshot)


def test_a_document_of_an_earlier_version_is_not_green_unproved() -> None:
    """``"verdict":"ok"`` with no verified product, from before completeness was told, is judged by its rows."""
    document = json.loads(encode(burn_in_document(node(NOTHING), plan="probe")))
    document |= {"verdict": "ok", "reason": "healthy"}
    del document["completeness"]
    report = read_document(json.dumps(document).encode())
    assert report.verdict == "unknown"
    assert report.reason.startswith("incomplete: 1 of 1 planned formats are not verified")


def test_the_load_before_spoils_nothing_but_by_what_was_wrong() -> None:
    """A format that was refused when somebody asked for it last week is no fault of today's probe."""
    before = msgspec.structs.replace(ASKED, conditions={**ASKED.conditions, "load": "before"}, ended=GOOD.started)
    today = msgspec.structs.replace(GOOD, conditions={**GOOD.conditions, "load": "today"})
    snapshot = msgspec.structs.replace(cpu_node(), results=(before, today))
    assert "nodevet_burnin_complete 1.0\n" in metrics_of(snapshot)
    wrong = msgspec.structs.replace(WRONG, conditions={**WRONG.conditions, "load": "before"}, ended=GOOD.started)
    snapshot = msgspec.structs.replace(cpu_node(), results=(wrong, today))
    assert "nodevet_burnin_complete 0.0\n" in metrics_of(snapshot)


@pytest.mark.parametrize("state", [EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED])
def test_a_clean_probe_after_a_wrong_result_is_no_green_beside_it(state: EpisodeState) -> None:
    """The probe of the next day takes the place of the wrong result in every list, and disproves nothing."""
    before = node(GOOD, OTHER)
    snapshot = msgspec.structs.replace(before, episodes=(open_episode(MISMATCH, state),))
    metrics = MetricsPage().render(snapshot).decode()
    assert "nodevet_burnin_complete 0.0\n" in metrics
    assert re.search(r'nodevet_burnin_mismatches\{[^}]*device="cpu-1"[^}]*\} 3\.0\n', metrics)
    assert dict(re.findall(r'nodevet_burnin_passed\{[^}]*device="(cpu-.)".*?\} (\d)', metrics)) == {
        "cpu-0": "1",
        "cpu-1": "0",
    }
    section = render_page(snapshot).split('id="burn-in-name"')[1]
    assert "3 wrong in an earlier burn-in, not cleared by a re-test" in section
    assert re.findall(r'class="badge ([a-z]+)"', section)[0] == "failed"
    cleared = msgspec.structs.replace(before, episodes=(open_episode(MISMATCH, EpisodeState.CLEARED),))
    assert "nodevet_burnin_complete 1.0\n" in MetricsPage().render(cleared).decode()


def test_a_wall_clock_that_was_set_back_brings_no_older_load_to_the_front() -> None:
    """The newest load is the one that came last: its stop is told, although an older one ended later by the clock."""
    late = msgspec.structs.replace(GOOD.ended, wall_seconds=GOOD.ended.wall_seconds + 365 * 86400.0)
    before = msgspec.structs.replace(GOOD, conditions={**GOOD.conditions, "load": "before"}, ended=late)
    today = msgspec.structs.replace(STOPPED, conditions={**STOPPED.conditions, "load": "today"})
    snapshot = msgspec.structs.replace(cpu_node(), results=(before, today))
    assert "nodevet_burnin_complete 0.0\n" in metrics_of(snapshot)


def test_the_top_of_the_page_hides_no_wrong_result() -> None:
    """Neither one that was found before any product was verified, nor one that a later probe did not show."""
    first = msgspec.structs.replace(
        WRONG,
        metrics=tuple(
            msgspec.structs.replace(metric, value=None) if metric.name == "gemms_verified" else metric
            for metric in WRONG.metrics
        ),
    )
    assert "no burn-in has run" not in render_page(node(first))
    known = open_episode(MISMATCH, EpisodeState.ACKNOWLEDGED)
    assert "0 wrong, 3 wrong in an earlier burn-in" in render_page(
        msgspec.structs.replace(node(OTHER), episodes=(known,))
    )


def test_a_burn_in_that_is_ok_beside_an_acknowledged_failure_says_so() -> None:
    """The first line of the table, as `nodevet status` has it."""
    assert (
        verdict_words("ok", "1 acknowledged failure (GPU 6: 3 wrong)") == "ok, 1 acknowledged failure (GPU 6: 3 wrong)"
    )
    assert verdict_words("ok", "healthy: 8 devices") == "ok"
    assert verdict_words("unknown", "incomplete") == "unknown: incomplete"


def test_a_measured_overhead_below_its_noise_is_told_as_none() -> None:
    """Checking never makes a product faster."""
    negative = tuple(
        msgspec.structs.replace(metric, value=-0.243) if metric.name == "checking_overhead_ratio" else metric
        for metric in GOOD.metrics
    )
    page = render(from_snapshot(node(msgspec.structs.replace(GOOD, metrics=negative))))
    assert "not measurable" in page
    assert "-24.3" not in page


ROW = encode(burn_in_document(node(GOOD), plan="probe"))
WRONG_ROW = encode(burn_in_document(node(WRONG), plan="probe"))

EDITED = {
    "a verdict set to ok beside wrong rows": (WRONG_ROW, {"verdict": "ok"}, "failed"),
    "wrong rows called complete": (WRONG_ROW, {"verdict": "ok", "completeness": None}, "failed"),
    "rows removed": (ROW, {"results": []}, "unknown"),
    "rows removed before completeness was told": (ROW, {"results": [], "completeness": None}, "unknown"),
    "rows of wrong products removed": (WRONG_ROW, {"verdict": "ok", "results": []}, "failed"),
    "a verdict that nobody knows": (ROW, {"verdict": "splendid"}, "unknown"),
    "nothing edited": (ROW, {}, "ok"),
}


@pytest.mark.parametrize("name", EDITED)
def test_a_report_is_no_better_than_its_own_rows(name: str) -> None:
    """Whoever wrote, merged or cut a document: it is judged by what it has, and none is green by absence."""
    content, edits, verdict = EDITED[name]
    edited = json.loads(content) | edits
    report = read_document(json.dumps({key: value for key, value in edited.items() if value is not None}).encode())
    assert report.verdict == verdict
    assert f'id="verdict">{verdict}</p>' in render(report)


def test_formats_whose_rows_were_cut_from_a_document_are_not_proved() -> None:
    """What was planned stands in the document beside the rows."""
    document = json.loads(encode(burn_in_document(node(GOOD, OTHER), plan="quick")))
    document["results"] = [row for row in document["results"] if row["device"] == "cpu-0"]
    assert read_document(json.dumps(document).encode()).verdict == "unknown"


def test_where_rows_of_one_run_disagree_the_worst_counts() -> None:
    """Two documents merged by hand have the same run twice; the later row hides no wrong result."""
    document = json.loads(ROW)
    wrong = [row | {"value": 4} for row in document["results"] if row["metric"] == "mismatches"]
    for rows in (wrong + document["results"], document["results"] + wrong):
        assert read_document(json.dumps(document | {"results": rows}).encode()).verdict == "failed"
    died = [row | {"state": "died"} for row in document["results"] if row["metric"] == "mismatches"]
    assert read_document(json.dumps(document | {"results": document["results"] + died}).encode()).verdict == "unknown"


@pytest.mark.parametrize(("told", "complete"), [(1, 0), (2, 1)])
def test_what_a_load_has_not_told_is_not_proved_on_page_and_metrics(told: int, complete: int) -> None:
    """A probe goes on, its agent was killed, or a board of it was replaced: before, what it had told was all of it."""
    before = [msgspec.structs.replace(each, conditions={"load": "before", PLANNED: 2}) for each in (GOOD, OTHER)]
    today = [msgspec.structs.replace(each, conditions={"load": "today", PLANNED: 2}) for each in (GOOD, OTHER)]
    latest = LatestResults()
    for result in (*before, *today[:told]):
        latest.take(result)
    snapshot = msgspec.structs.replace(cpu_node(), results=latest.everything)
    assert f"nodevet_burnin_complete {float(complete)}\n" in metrics_of(snapshot)
    section = render_page(snapshot).split('id="burn-in-name"')[1]
    assert re.findall(r'class="badge ([a-z]+)"', section)[0] == ("ok" if complete else "unknown")
    assert ("1 of its results are not in the agent" in section) is not bool(complete)
    latest.forget("cpu-1")
    assert "nodevet_burnin_complete 0.0\n" in metrics_of(msgspec.structs.replace(snapshot, results=latest.everything))


def test_status_names_the_reason_of_a_released_collector() -> None:
    """A collector without a device to close reports no detail, and the line must not end at its colon."""
    lines = status_text(status_document(NODES["released"]())).splitlines()
    told = [line for line in lines if "collector released: " in line]
    assert len(told) == 2
    assert all("nodevet release closed its device handles" in line for line in told)
