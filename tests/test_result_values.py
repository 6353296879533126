"""Values of a result: nonsense of a load is left out, and every surface shows each result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fakes.snapshots import burn_in, cpu_node
from fakes.views import healthy, judge
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.agent.daemon.loads import Loads
from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.store.database import checksum
from nodevet.agent.store.rows import whole_result
from nodevet.agent.terminal.text import status_text
from nodevet.checks.burnin.metrics import UNITS
from nodevet.checks.core.conditions import LARGEST_NUMBER, KnownConditions
from nodevet.checks.core.model import Instant, Metric, Outcome, Result, ResultState, Snapshot
from nodevet.checks.core.sample import EARLIEST_WALL_SECONDS, LARGEST_BOOTTIME_NS, LATEST_WALL_SECONDS
from nodevet.checks.core.wire import Decoder, ResultMessage, encode
from nodevet.checks.engine.retest import is_passed_retest
from nodevet.checks.engine.view import View
from nodevet.exporters.documents.schema import burn_in_document, status_document
from nodevet.exporters.documents.schema import encode as as_json
from nodevet.exporters.documents.types import BurnInDocument
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.report.document import from_burn_in
from nodevet.exporters.report.render import render
from nodevet.exporters.web.page.render import StatusPage

WORDS = st.sampled_from(["", "a", "cpu-0", "\u2028", "<b>", "0", "mismatch"])
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(), st.sampled_from([0, 1, -1, 1e300, -1e300, 10**29, 1e-320])
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
KEYS = (*KnownConditions.__struct_fields__, "origin", "rows", "tiles", "flipped_bits", "memory_bytes", "families")
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
NONSENSE = st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=3)
INTEGERS = st.lists(st.integers(-(2**63), 2**63), max_size=2)
FIGURES = st.floats(-LARGEST_NUMBER, LARGEST_NUMBER)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "load": st.none() | WORDS,
        "planned_results": st.none() | st.integers(),
        "asked": st.booleans(),
        "refusal": st.none() | WORDS,
        "left_out": st.none() | WORDS,
        "verification": st.none() | WORDS,
        "temperature_celsius": st.none() | FIGURES,
        "power_watts": st.none() | FIGURES,
        "unsupported": st.lists(WORDS, max_size=2),
        "mismatch_reports": st.lists(
            WORDS
            | st.fixed_dictionaries(
                {},
                optional={
                    "product": st.none() | st.integers(),
                    "origin": WORDS,
                    "rows": INTEGERS,
                    "columns": INTEGERS,
                    "tiles": st.lists(INTEGERS, max_size=2),
                    "flipped_bits": st.dictionaries(WORDS, st.integers(), max_size=2),
                    "reruns": st.none() | st.integers(),
                    "cells": st.none() | st.integers(),
                },
            ),
            max_size=2,
        ),
        "self_test": st.lists(st.dictionaries(WORDS, LEAVES, max_size=2), max_size=2),
        "curves": st.dictionaries(WORDS, st.lists(st.tuples(FIGURES, FIGURES), max_size=3), max_size=2),
        "memory_bytes": ANYTHING,
    },
)
WALL = st.floats(EARLIEST_WALL_SECONDS, LATEST_WALL_SECONDS)
TIMES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "boot_id": WORDS,
        "boottime_ns": st.integers(-(2**63), 2**63 - 1),
        "wall_seconds": WALL | st.sampled_from([EARLIEST_WALL_SECONDS, LATEST_WALL_SECONDS, float("nan"), 1e300]),
    }
)
METRICS = st.fixed_dictionaries(
    {"name": st.sampled_from([*UNITS]) | WORDS, "value": st.none() | FIGURES | NUMBERS, "unit": WORDS}
)
SENT: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "workload": st.sampled_from(["gemm", "other", "<b>"]),
        "devices": st.lists(st.sampled_from(["cpu-0", "cpu-1", "\u2028", "<b>"]), max_size=2),
        "state": st.sampled_from([state.value for state in ResultState]),
        "started": TIMES,
        "ended": TIMES,
        "dtype": st.none() | WORDS,
        "shape": st.lists(st.integers(-(2**63), 2**63), max_size=3),
        "seed": st.none() | st.integers(0, 2**63),
        "detail": WORDS,
        "conditions": NONSENSE | KNOWN,
        "metrics": st.lists(METRICS, max_size=5),
    }
)


def shown(snapshot: Snapshot, result: Result) -> None:
    """Show *result* on every surface."""
    document = burn_in_document(snapshot, plan="probe", results=(result,))
    as_json(document)
    as_json(status_document(snapshot))
    render(from_burn_in(document))
    status_text(status_document(snapshot))
    StatusPage(lambda: snapshot.time).render(snapshot)
    for openmetrics in (True, False):
        MetricsPage(detail=True).render(snapshot, openmetrics)


@settings(max_examples=40)
@given(SENT)
def test_each_result_is_shown_everywhere(sent: dict[str, Any]) -> None:
    """Judging, document, report, page, metrics and terminal show whatever a load sends."""
    try:
        result = msgspec.convert(sent, Result)
    except msgspec.ValidationError:
        return
    stamped = LoadRecorder().stamped(result, ())
    judge("burn-in", msgspec.structs.replace(healthy(), results=(burn_in("cpu-0", 1, 1), stamped)))
    shown(msgspec.structs.replace(cpu_node(), results=(burn_in("cpu-0", 1, 1), stamped)), stamped)
    payload = msgspec.json.encode(stamped)
    assert whole_result((stamped.workload, payload, checksum(stamped.workload, payload))) is not None


GOOD = burn_in("cpu-0", 1, 1)
WRONG = burn_in("cpu-0", 1, 1, wrong=3)
NONSENSE_OF: dict[str, Any] = {
    "end beyond any calendar": {"ended": {"boot_id": "b", "boottime_ns": 1, "wall_seconds": 1e300}},
    "start that is no number": {"started": {"boot_id": "b", "boottime_ns": 1, "wall_seconds": float("nan")}},
    "start before any calendar": {"started": {"boot_id": "b", "boottime_ns": 1, "wall_seconds": -1e12}},
    "infinitely many wrong": {"metrics": [{"name": "mismatches", "value": float("inf"), "unit": "count"}]},
    "verified is no number": {"metrics": [{"name": "gemms_verified", "value": float("nan"), "unit": "count"}]},
    "curves are a number": {"conditions": {"kept": 1, "curves": 7}},
    "a point of a curve is a word": {"conditions": {"kept": 1, "curves": {"tflops": [[0, "fast"]]}}},
    "a temperature that any re-test reaches": {"conditions": {"kept": 1, "temperature_celsius": float("-inf")}},
    "the place of a wrong cell is a number": {"conditions": {"kept": 1, "mismatch_reports": [{"rows": 5}]}},
    "what a device cannot tell is a number": {"conditions": {"kept": 1, "unsupported": 5}},
    "a load is a list": {"conditions": {"kept": 1, "load": []}},
    "no workload": {"workload": ""},
    "a device without a name": {"devices": ["", "cpu-0"]},
}


@pytest.mark.parametrize("case", NONSENSE_OF)
def test_nonsense_of_a_load_hides_no_wrong_result(case: str) -> None:
    """It is left out on the wire, the rest is judged and shown, and what has no sane value proves nothing."""
    message = msgspec.to_builtins(ResultMessage(WRONG)) | {"type": "ResultMessage"}
    nonsense = NONSENSE_OF[case]
    message["result"] |= nonsense
    body = msgspec.msgpack.encode(message)
    (read,) = Decoder().feed(len(body).to_bytes(4) + body)
    assert isinstance(read, ResultMessage)
    result = read.result
    shown(msgspec.structs.replace(cpu_node(), results=(result,)), result)
    (key,) = nonsense
    expected = {
        "started": Instant("b", 1, 0.0),
        "ended": Instant("b", 1, 0.0),
        "metrics": tuple(Metric(entry["name"], None, "count") for entry in nonsense.get("metrics", ())),
        "conditions": {"kept": 1},
        "workload": "unnamed",
        "devices": ("cpu-0",),
    }
    assert getattr(result, key) == expected[key]
    assert not is_passed_retest(result)
    wrong = [finding.device for finding in judge("burn-in", view_of(result)) if finding.outcome is Outcome.FAIL]
    assert wrong == ([] if key == "metrics" else ["cpu-0"])


@pytest.mark.parametrize("nonsense", [{"left_out": ["62 of 64 processors"]}, {"left_out": 0.5}])
def test_a_limit_of_a_proof_that_cannot_be_read_limits_it(nonsense: dict[str, Any]) -> None:
    """A load that reached a part of its device proves nothing, however it names the part."""
    assert is_passed_retest(GOOD)
    limited = msgspec.structs.replace(GOOD, conditions={**GOOD.conditions, **nonsense})
    assert not is_passed_retest(limited)
    assert limited.conditions["left_out"] == "a part that cannot be read"


def test_a_format_that_somebody_may_have_asked_for_is_missed() -> None:
    """A device that lacks it spoils nothing otherwise."""
    refused = msgspec.structs.replace(GOOD, conditions={"refusal": "format", "asked": "bf16"})
    assert refused.conditions == {"refusal": "format", "asked": True}


def view_of(result: Result) -> View:
    """Return a view of a node with the device of *result*."""
    return msgspec.structs.replace(healthy(), devices=cpu_node().devices, results=(result,))


def test_a_time_beyond_64_bits_is_none() -> None:
    """JSON has integers of any length, and SQLite has not."""
    assert Instant("b", 2**63, 1.0) == Instant("b", 0, 1.0)


def test_the_message_of_an_honest_load_is_kept() -> None:
    """The bounds stand where a value would still be shown."""
    extreme = msgspec.structs.replace(
        WRONG,
        started=Instant("b", -LARGEST_BOOTTIME_NS, EARLIEST_WALL_SECONDS),
        ended=Instant("b", LARGEST_BOOTTIME_NS, LATEST_WALL_SECONDS),
        metrics=(Metric("mismatches", 0, "count"), Metric("flops", LARGEST_NUMBER, "count")),
    )
    assert extreme.started.wall_seconds == EARLIEST_WALL_SECONDS
    assert list(Decoder().feed(encode(ResultMessage(extreme)))) == [ResultMessage(extreme)]
    shown(msgspec.structs.replace(cpu_node(), results=(extreme,)), extreme)


def test_a_probe_whose_document_fails_costs_no_later_one() -> None:
    """Its results are judged and kept; the document of the next probe has the results of that one alone."""
    later = msgspec.structs.replace(GOOD, seed=7)
    rendered: list[BurnInDocument] = []
    probes = iter([(GOOD,), (later,)])
    newest = iter([None, cpu_node()])
    prober = SimpleNamespace(running=False, tick=lambda _snapshot: next(probes), found=lambda: ())

    class Judged(SimpleNamespace):
        """Judges without a snapshot at first."""

        @property
        def newest(self) -> Snapshot:
            """Return the next snapshot."""
            return cast(Snapshot, next(newest))

    judged = Judged(snapshot=cpu_node(), now=cpu_node().time, judge=lambda: None, when_kept=lambda act: act(""))
    loads = Loads(
        cast(Any, prober),
        cast(Any, SimpleNamespace(leases=SimpleNamespace(current=None))),
        LoadRecorder(),
        cast(Any, SimpleNamespace(render=rendered.append)),
        cast(Any, SimpleNamespace(take_result=lambda _result: None)),
        cast(Any, SimpleNamespace(load_ended=lambda _result: None)),
        cast(Any, judged),
    )
    with pytest.raises(AttributeError):
        loads.tick()
    loads.tick()
    assert [{result.seed for result in document.results} for document in rendered] == [{7}]
