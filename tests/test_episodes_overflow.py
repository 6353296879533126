"""A flood of different findings: what closes no gate is counted beyond a bound, what closes one is always kept."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, fault, gpu

from nodevet.checks.core.model import NODE, Episode, EpisodeState, Finding, Outcome, State
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, acknowledge, fold
from nodevet.checks.engine.explanation import declared_rules
from nodevet.checks.engine.overflow import MAXIMUM_KEPT, NOT_KEPT, without_those_not_kept
from nodevet.checks.engine.standing import verdict

DEVICES = (gpu(), gpu(SIBLING, "0000:2b:00.0"))
FLOOD = 60_000


def flood(count: int = FLOOD, **changes: object) -> list[Finding]:
    """Return *count* different findings that close no gate."""
    return [fault(f"test.{number}", Outcome.WARN, gates=False, **changes) for number in range(count)]


def folded(*rounds: list[Finding], ledger: Ledger | None = None) -> Ledger:
    """Return the ledger after *rounds*."""
    ledger = ledger or Ledger()
    for number, findings in enumerate(rounds):
        ledger, _ = fold(ledger, findings, Evidence(now=at(10.0 * (number + 1)), devices=DEVICES))
    return ledger


def not_kept(ledger: Ledger) -> Episode:
    """Return the one finding that counts what was not kept."""
    (episode,) = [entry for entry in ledger.episodes if entry.key.code == NOT_KEPT]
    return episode


def test_a_flood_of_findings_that_close_no_gate_is_counted() -> None:
    """A bounded number is open, one finding more says how many are not kept, and it closes no gate itself."""
    ledger = folded(flood())
    assert len(ledger.episodes) == MAXIMUM_KEPT + 1
    told = not_kept(ledger)
    assert (told.key.device, told.key.part.name, told.outcome) == (NODE, "vendor:test", Outcome.WARN)
    assert not told.finding.gates
    assert str(FLOOD - MAXIMUM_KEPT) in told.finding.message


def test_the_round_of_a_flood_shows_no_more_than_is_kept() -> None:
    """What was only counted is on no surface, and everything else of the round is."""
    passed = [msgspec.structs.replace(fault(f"good.{number}"), outcome=Outcome.PASS) for number in range(700)]
    other = fault("other.1", Outcome.WARN, check="other")
    findings = [*flood(2_000), *passed, *(fault(f"hard.{number}") for number in range(600)), other]
    shown = without_those_not_kept(findings, folded(findings).episodes)
    assert len(shown) == MAXIMUM_KEPT + len(passed) + 600 + 1
    assert other in shown
    assert without_those_not_kept(findings, ()) == tuple(findings)


def test_so_many_findings_as_there_is_room_for_are_all_kept() -> None:
    """Nothing is told of as not kept then."""
    assert len(folded(flood(MAXIMUM_KEPT)).episodes) == MAXIMUM_KEPT


def test_floods_of_many_rounds_stay_bounded_and_the_largest_is_told() -> None:
    """The same ones again count no further; other ones find no room either."""
    rounds = [flood(2_000), flood(900), [fault(f"more.{n}", Outcome.WARN, gates=False) for n in range(700)]]
    ledger = folded(*rounds)
    assert len(ledger.episodes) == MAXIMUM_KEPT + 1
    assert f"up to {2_000 - MAXIMUM_KEPT} more" in not_kept(ledger).finding.message


@pytest.mark.parametrize("place", [0, FLOOD // 2, FLOOD])
def test_what_closes_the_gate_is_kept_behind_any_flood(place: int) -> None:
    """Thousands of hard faults in it too."""
    findings = flood()
    findings[place:place] = [fault(f"hard.{number}") for number in range(1_000)]
    ledger = folded(findings)
    hard = [entry for entry in ledger.episodes if entry.key.code.startswith("hard.")]
    assert len(hard) == 1_000
    assert verdict(GPU, ledger.episodes, ()).hard


def test_a_finding_that_was_not_kept_opens_once_it_closes_the_gate() -> None:
    """It was mild in the flood, and is a hard fault now."""
    findings = flood()
    worse = msgspec.structs.replace(findings[-1], outcome=Outcome.FAIL, gates=True)
    assert folded(findings, [worse]).find(worse.key) is not None


def test_a_flood_on_one_device_makes_no_other_one_green() -> None:
    """The first finding of each device is kept."""
    quiet = fault("test.quiet", Outcome.WARN, gates=False, device=SIBLING)
    ledger = folded([*flood(), quiet])
    assert ledger.find(quiet.key) is not None
    assert verdict(SIBLING, ledger.episodes, ()).state is State.DEGRADED


def test_a_flood_of_mild_findings_hides_no_grave_one() -> None:
    """A measured failure on the same device still makes it failed."""
    grave = fault("test.grave", gates=False)
    assert verdict(GPU, folded([*flood(), grave]).episodes, ()).state is State.FAILED


def test_texts_of_users_take_no_room_from_what_the_kernel_tells() -> None:
    """Whoever writes text fills the room of texts."""
    texts = [msgspec.structs.replace(entry, code=f"text.{entry.code}") for entry in flood()]
    real = fault("test.real", Outcome.WARN, gates=False)
    assert folded([*texts, real]).find(real.key) is not None


def test_where_findings_end_there_is_room_again_and_the_count_stays_until_somebody_looked() -> None:
    """What was not kept may have been told once, so no good look ends its count; a person's word settles it."""
    passed = [msgspec.structs.replace(entry, outcome=Outcome.PASS) for entry in flood(MAXIMUM_KEPT)]
    ledger = folded(flood(MAXIMUM_KEPT + 1))
    for round_number in range(4):
        looked = [msgspec.structs.replace(entry, evidence_time=at(100.0 + round_number)) for entry in passed]
        ledger, _ = fold(ledger, looked, Evidence(now=at(100.0 + round_number), devices=DEVICES))
    assert [entry.key.code for entry in ledger.episodes] == [NOT_KEPT]
    done = acknowledge(ledger, not_kept(ledger).key, note="a broken cable", actor="uid 0")
    assert done is not None
    again = fold(done[0], flood(MAXIMUM_KEPT + 1), Evidence(now=at(200.0), devices=DEVICES))[0]
    assert len(again.episodes) == MAXIMUM_KEPT + 1
    assert not_kept(again).state is EpisodeState.ACKNOWLEDGED


def test_what_is_not_kept_is_explained() -> None:
    """`nodevet explain` knows its code."""
    assert NOT_KEPT in declared_rules()
