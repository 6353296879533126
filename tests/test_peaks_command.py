"""``nodevet devices --peaks`` and ``--mfu``."""

from __future__ import annotations

import argparse

import msgspec
import pytest
from fakes.snapshots import burn_in, cpu_node, gpu, gpu_id, gpu_node
from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.commands._peaks import DevicePeaks, FormatPeaks, Step, node_peaks, parse_step, peaks_text
from nodevet.agent.commands.devices import show_peaks
from nodevet.agent.terminal import exits
from nodevet.checks.burnin.metrics import figures
from nodevet.checks.core.model import Snapshot
from nodevet.exporters.documents.schema import status_document

STEP = Step(989.4e12, 2.0)


def peaks(snapshot: Snapshot, step: Step | None = None) -> tuple[DevicePeaks, ...]:
    """Return the peaks of the node."""
    return node_peaks(status_document(snapshot), step)


def bf16(device: DevicePeaks) -> FormatPeaks:
    """Return the peaks of *device* in bf16."""
    (found,) = (each for each in device.peaks if each.format == "bf16")
    return found


def test_peaks_of_a_node_are_listed_once_for_devices_that_are_alike() -> None:
    """Eight H100 share the rows of their formats, and one line tells the source."""
    found = peaks(gpu_node())
    assert len(found) == 8
    lines = list(peaks_text(found, None))
    table = lines[0].splitlines()
    assert table[0].split() == ["MODEL", "DEVICES", "FORMAT", "SPECIFICATION", "HIGHEST", "HELD", "FROM"]
    (row,) = [line for line in table if " bf16 " in line]
    assert row.split()[4:] == ["8", "bf16", "989.4", "1071", "unknown", "specification", "clock"]
    assert len(table) == 1 + 7
    (source,) = [line for line in lines if line.startswith("NVIDIA H100 80GB HBM3: ")]
    assert "published figures: github.com/" in source


def test_a_step_is_compared_with_each_peak() -> None:
    """Half of the specification's peak is 46 % of that at the highest clock, and unknown at a clock nobody read."""
    found = peaks(gpu_node(), STEP)
    shares = bf16(found[0]).mfu
    assert shares == {
        "specification": pytest.approx(0.5, abs=1e-3),
        "highest": pytest.approx(0.462, abs=1e-3),
        "held": None,
    }
    (row,) = [line for line in "\n".join(peaks_text(found, STEP)).splitlines() if " bf16 " in line]
    assert row.split()[-5:] == ["50.0", "%", "46.2", "%", "unknown"]


def test_an_ok_node_without_a_known_peak_is_unknown() -> None:
    """Nothing was compared, so a script must not take it for good."""
    document = status_document(cpu_node())
    assert document.verdict == "ok"
    assert show_peaks(document, argparse.Namespace(mfu=None, json=True)) == exits.UNKNOWN
    assert show_peaks(status_document(gpu_node()), argparse.Namespace(mfu=None, json=True)) != exits.UNKNOWN


def test_the_clock_of_the_last_burn_in_gives_the_third_peak() -> None:
    """At 1500 MHz an H100 has 811 TFLOPS, and the devices are told apart."""
    result = burn_in(gpu_id(2), 600.0, 0.6)
    told = figures({"clock_held_hertz": 1.5e9})
    result = msgspec.structs.replace(result, dtype="bf16", metrics=(*result.metrics, *told))
    found = peaks(msgspec.structs.replace(gpu_node(), results=(result,)), STEP)
    assert [each.held is None for each in map(bf16, found)] == [index != 2 for index in range(8)]
    assert bf16(found[2]).held == pytest.approx(811e12, rel=1e-3)
    assert (bf16(found[2]).mfu or {})["held"] == pytest.approx(0.61, abs=1e-3)
    rows = [line.split()[4] for line in "\n".join(peaks_text(found, STEP)).splitlines() if " bf16 " in line]
    assert sorted(rows) == ["1", "7"]


def test_what_cannot_be_is_said() -> None:
    """More than the peak: the count of operations is wrong, or sparse."""
    lines = list(peaks_text(peaks(gpu_node(), Step(1e18, 1.0)), Step(1e18, 1.0)))
    assert any(line.startswith("an MFU above 100 %") for line in lines)
    assert not any(line.startswith("an MFU") for line in peaks_text(peaks(gpu_node(), STEP), STEP))


def test_a_share_of_a_device_has_no_peak_of_the_whole() -> None:
    """An instance whose units are unknown, and a model that no table lists."""
    instance = gpu(0, parent=gpu_id(1), compute_units=None)
    unlisted = gpu(1, model="NVIDIA Unheard Of", pci_device_id=None)
    found = peaks(msgspec.structs.replace(gpu_node(), devices=(instance, unlisted)))
    assert [each.peaks for each in found] == [(), ()]
    assert list(peaks_text(found, None)) == [
        "NVIDIA H100 80GB HBM3: neither a table nor its architecture tells its peaks",
        "NVIDIA Unheard Of: neither a table nor its architecture tells its peaks",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "1e15", "1e15,", ",2", "1e15,2,3", "1e15,0", "0,2", "-1e15,2", "1e15,-2", "nan,2", "1e15,nan", "inf,2"),
        *("1,inf", "1e308,1e-308", "a,b", "1e15 2"),
    ],
)
def test_a_senseless_step_is_refused_with_an_example(text: str) -> None:
    """Neither zero, nor a negative, nor what is no number."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 1\.2e15,2\.5"):
        parse_step(text)


@given(st.floats(1e6, 1e24), st.floats(1e-6, 1e6))
def test_a_step_is_read_as_it_is_written(operations: float, seconds: float) -> None:
    """In any notation of numbers."""
    assert parse_step(f"{operations!r}, {seconds!r}").rate == operations / seconds
