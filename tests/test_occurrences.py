"""A log that is read again opens nothing that was dealt with, and what is new is never taken for old."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import at, burn_in, event, fault, gpu, healthy, judge

from nodevet.agent.readers.telling import by_clock_of_log
from nodevet.checks.core.model import Action, Clearing, Event, Finding, Outcome, Provenance
from nodevet.checks.core.occurrences import is_dealt_with, stamped
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, Settled, fold
from nodevet.checks.kernel_log.lines import split_record
from nodevet.checks.kernel_log.parse import KernelLogParser


def told(seconds: float) -> Finding:
    """Return the finding of an event that the kernel recorded at *seconds*."""
    return fault(
        "nvidia.xid.48",
        clearing=Clearing.HARDWARE_EVENT,
        evidence_time=at(seconds),
        occurrence=stamped("b", at(seconds).boottime_ns // 1000),
    )


def after(ledger: Ledger, seconds: float, *findings: Finding, passed: bool = False) -> Ledger:
    """Return *ledger* after a round, with a re-test that passed where that is wanted."""
    results = (burn_in(started=seconds - 61.0),) if passed else ()
    return fold(ledger, findings, Evidence(now=at(seconds), devices=(gpu(),), results=results))[0]


@pytest.fixture
def retested() -> Ledger:
    """The ledger of a node with two events of one fault, which a re-test disproved."""
    opened = after(Ledger(), 30.0, told(10.0), told(20.0))
    assert [episode.count for episode in opened.episodes] == [2]
    ended = after(opened, 100.0, passed=True)
    assert not ended.episodes and ended.settled
    return ended


def test_a_log_that_is_read_again_opens_nothing_that_was_disproved(retested: Ledger) -> None:
    """Of several events the last one is remembered, and those before it were dealt with when it was."""
    assert not after(retested, 120.0, told(10.0), told(20.0)).episodes


def test_a_new_event_opens_what_was_disproved(retested: Ledger) -> None:
    """Also where the log is read again together with it."""
    (episode,) = after(retested, 120.0, told(10.0), told(20.0), told(110.0)).episodes
    assert episode.count == 1


def test_what_a_driver_told_a_moment_ago_is_not_told_anew_by_the_log() -> None:
    """Its stamp is ahead by the time that the log may take, which is no virtual machine that was set back."""
    settled = Settled(told(110.0).key, stamped("b", at(110.0).boottime_ns // 1000, is_of_log=False))
    ended = after(Ledger(settled=(settled,)), 111.0)
    assert not after(ended, 113.0, told(112.0)).episodes
    assert after(ended, 120.0, told(116.0)).episodes


def test_a_virtual_machine_that_is_set_back_hides_no_new_event(retested: Ledger) -> None:
    """Its clock then stands before what was disproved, and comes by that moment once more."""
    back = after(retested, 12.0)
    (episode,) = after(back, 19.0, told(18.0)).episodes
    assert episode.finding.occurrence == told(18.0).occurrence


def test_a_log_that_is_read_again_counts_no_event_twice() -> None:
    """An agent reads again what a single look before it has read, and each moment is a little another."""
    opened = after(Ledger(), 30.0, told(10.0), told(20.0))
    (before,) = opened.episodes
    later = [msgspec.structs.replace(told(seconds), evidence_time=at(seconds + 1e-6)) for seconds in (10.0, 20.0)]
    (again,) = after(opened, 60.0, *later).episodes
    assert (again.count, again.finding.occurrence, again.last_seen) == (2, told(20.0).occurrence, before.last_seen)
    (news,) = after(opened, 60.0, *later, told(50.0)).episodes
    assert (news.count, news.finding.occurrence) == (3, told(50.0).occurrence)


def test_an_earlier_event_that_is_graver_counts() -> None:
    """The journal tells later what the ring had forgotten."""
    mild = msgspec.structs.replace(told(20.0), outcome=Outcome.WARN)
    (episode,) = after(after(Ledger(), 30.0, mild), 60.0, told(10.0)).episodes
    assert episode.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((Outcome.WARN, Action.WATCH), (Outcome.FAIL, Action.DRAIN_RESET)),
        ((Outcome.FAIL, Action.RESET_DEVICE), (Outcome.FAIL, Action.REBOOT)),
    ],
)
def test_of_two_events_with_one_stamp_the_graver_one_counts(
    first: tuple[Outcome, Action], second: tuple[Outcome, Action]
) -> None:
    """The kernel records several lines of a fault within a microsecond; read again, they change nothing."""
    lines = [msgspec.structs.replace(told(10.0), outcome=outcome, action=action) for outcome, action in (first, second)]
    for findings in (lines, lines[::-1]):
        opened = after(Ledger(), 30.0, *findings)
        (episode,) = opened.episodes
        assert (episode.outcome, episode.finding.action) == second
        assert after(opened, 60.0, *findings).episodes == opened.episodes


@pytest.mark.parametrize(
    ("occurrence", "settled", "expected"),
    [
        (stamped("b", 10), stamped("b", 10), True),
        (stamped("b", 9), stamped("b", 10), True),
        (stamped("b", 11), stamped("b", 10), False),
        (stamped("b", 9), stamped("another", 10), False),
        ("b:9", "b:10", False),
        ("b:10", "b:10", True),
        ("b:9", stamped("b", 10), False),
        (None, None, False),
        (stamped("b", 9), None, False),
    ],
)
def test_only_events_of_one_boot_have_an_order(occurrence: str | None, settled: str | None, expected: bool) -> None:
    """A counter that shows another value is news, also where it is lower: it was set back."""
    assert is_dealt_with(occurrence, settled) is expected


HARDWARE = "{1}[Hardware Error]: "
CORRECTED = (f"{HARDWARE}event severity: corrected", f"{HARDWARE}  section_type: PCIe error")
STATUS = "nvidia 0000:3b:00.0: AER: aer_status: 0x00000040, aer_mask: 0x00002000"
NOT_PROBED = "NVRM: The NVIDIA probe routine was not called for 1 device(s)."
NONE = "NVRM: None of the NVIDIA devices were initialized."


@pytest.mark.parametrize(
    ("lines", "seconds", "expected"),
    [
        ((*CORRECTED, STATUS), 0.1, ["pcie.apei"]),
        ((*CORRECTED, STATUS), 60.0, ["pcie.apei", "pcie.aer"]),
        ((NOT_PROBED, NONE), 0.1, ["nvidia.driver.not_probed"]),
        ((NOT_PROBED, NONE), 60.0, ["nvidia.driver.not_probed", "nvidia.driver.none_initialized"]),
        ((NOT_PROBED, *["x"] * 20, NONE), 0.1, ["nvidia.driver.not_probed"]),
    ],
)
def test_an_echo_that_comes_with_a_later_read_is_no_event(
    lines: tuple[str, ...], seconds: float, expected: list[str]
) -> None:
    """The kernel tells what it did about an error a moment later, when the error itself may have been told already."""
    parser = KernelLogParser()
    codes = []
    for number, text in enumerate(lines):
        moment = 10.0 if text != lines[-1] else 10.0 + seconds
        device = "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0" if text == STATUS else ""
        line = split_record(f"3,{number},{int(moment * 1e6)},-;{text}{device}")
        assert line is not None
        parser.feed(line, at(moment))
        codes += [event.code for event in parser.take(at(moment - 1.0))]
    assert codes == expected


def of_nvml(seconds: float, asleep: float) -> Event:
    """Return what NVML told at *seconds*, of a machine that slept for *asleep* seconds until then."""
    changes = {"source": "nvml", "sequence": None, "provenance": Provenance.DRIVER, "time": at(seconds)}
    return by_clock_of_log(event("nvidia.xid.48", **changes), round(asleep * 1e9))


def of_log(seconds: float, asleep: float) -> Event:
    """Return what the kernel's log has of *seconds*; its clock stood still while the machine slept."""
    moment = at(seconds)
    return event("nvidia.xid.48", time=moment, stamp_us=round(moment.boottime_ns / 1e3 - asleep * 1e6))


def found(told: Event) -> Finding:
    """Return what *told* counts as."""
    (finding,) = [one for one in judge("kernel-log", healthy(events=(told,))) if one.code == "nvidia.xid.48"]
    return finding


@pytest.mark.parametrize("asleep", [0.0, 15.0, 900.0])
def test_a_log_that_is_read_again_opens_nothing_that_nvml_told_and_a_re_test_disproved(asleep: float) -> None:
    """The log has it too, with a stamp of its own, and was no second source of news while NVML was heard."""
    opened = after(Ledger(), 30.0, found(of_nvml(20.0, asleep)))
    for late in (-0.5, 0.0, 4.0):
        (episode,) = after(opened, 60.0, found(of_log(20.0 + late, asleep))).episodes
        assert episode.count == 1  # nor is it counted twice
        ended = after(opened, 100.0, passed=True)
        again = after(ended, 120.0, found(of_log(20.0 + late, asleep)))
        assert not again.episodes
        (episode,) = after(again, 140.0, found(of_log(130.0, asleep))).episodes
        assert episode.count == 1
        assert after(ended, 140.0, found(of_nvml(130.0, asleep))).episodes


def test_a_new_event_behind_a_sleep_opens_what_nvml_told_before() -> None:
    """The clock of the log did not go on while the machine slept."""
    ended = after(after(Ledger(), 30.0, found(of_nvml(20.0, 0.0))), 100.0, passed=True)
    (episode,) = after(ended, 3800.0, found(of_log(3750.0, 3600.0))).episodes
    assert episode.count == 1
