"""Peaks of devices: at the clock of the specification, at the highest clock, and against vendors' printed figures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from nodevet.checks.burnin.peak import (
    FORMATS,
    Accelerator,
    Architecture,
    DeviceFacts,
    find_accelerator,
    peaks_of,
    table_cache_bytes,
)
from nodevet.checks.core.tables import read_table
from nodevet.checks.reference.tables import load_table


class Printed(msgspec.Struct, frozen=True):
    """A row of fixtures/published_peaks.csv: what a vendor prints of *devices* devices; sparse rates are doubled.

    ``evidence``: the figure was ``read`` in the source, or ``recalled`` from the document that is named there.
    """

    name: str
    architecture: str
    compute_units: int | None
    format: str
    tera_per_second: float
    sparse: bool
    devices: int
    evidence: Literal["read", "recalled"]
    source: str
    explanation: str

    @property
    def dense(self) -> float:
        """Return the dense rate of one device in operations per second."""
        return self.tera_per_second * 1e12 / self.devices / (2 if self.sparse else 1)


PRINTED = read_table(Path(__file__).with_name("fixtures") / "published_peaks.csv", Printed)
PARTS = {row.name: row for row in load_table("accelerators.csv", Accelerator)}


def nvidia(name: str, **facts: object) -> DeviceFacts:
    """Return what a device of NVIDIA with 132 units at 1980 MHz says of itself, with *facts* changed."""
    known = {"vendor": "nvidia", "name": name, "architecture": "sm90", "compute_units": 132}
    return msgspec.convert(known | {"maximum_clock_hertz": 1.98e9} | facts, DeviceFacts)


def tera(rate: float | None) -> float | None:
    """Return *rate* in 1e12 operations per second, to four digits."""
    return None if rate is None else float(f"{rate / 1e12:.4g}")


@pytest.mark.parametrize("name", dict.fromkeys(row.name for row in PRINTED))
def test_peak_is_the_dense_figure_that_the_vendor_prints(name: str) -> None:
    """Within 1 %, from the device's own units where they are known; a row that differs says why."""
    for row in (row for row in PRINTED if row.name == name):
        facts = DeviceFacts(
            vendor=PARTS[name].vendor,
            name=name,
            architecture=row.architecture or None,
            compute_units=row.compute_units,
        )
        peak = peaks_of(facts, row.format).specification
        assert peak is not None, row.format
        differs = abs(peak / row.dense - 1) > 0.01
        assert differs is bool(row.explanation), (row.format, peak, row.dense)


def test_many_parts_are_compared_with_their_vendor() -> None:
    """At least forty parts, and both kinds of figures."""
    assert len({row.name for row in PRINTED}) >= 40
    assert {row.sparse for row in PRINTED} == {True, False}
    assert all(row.source for row in PRINTED)


def test_the_specification_s_peak_lies_below_that_of_the_highest_clock() -> None:
    """An H100 that says 1980 MHz: 989 TFLOPS in bf16 at 1830 MHz, 1070 at its highest clock."""
    peaks = peaks_of(nvidia("NVIDIA H100 80GB HBM3", pci_device_id="10de:2330"), "bf16")
    assert (tera(peaks.specification), tera(peaks.highest)) == (989.4, 1071.0)
    assert (peaks.source, peaks.confidence) == ("specification clock", "published")
    assert peaks.specification_clock_hertz == 1.83e9
    assert tera(peaks.at(1.5e9)) == 811.0


def test_vector_formats_are_published_at_their_own_clock() -> None:
    """The 67 TFLOPS of fp32 and fp64 of an H100 are those at 1980 MHz, not at 1830 MHz."""
    for data_type in ("fp32", "fp64"):
        peaks = peaks_of(nvidia("NVIDIA H100 80GB HBM3"), data_type)
        assert (tera(peaks.specification), peaks.specification_clock_hertz) == (66.91, 1.98e9)


def test_a_family_is_enough_where_the_table_knows_the_part() -> None:
    """NVML says ``hopper`` of an H100 and ``ampere`` of an A10 and an A100."""
    named = nvidia("NVIDIA H100 80GB HBM3", architecture="hopper")
    assert peaks_of(named, "bf16") == peaks_of(nvidia("NVIDIA H100 80GB HBM3"), "bf16")
    assert tera(peaks_of(nvidia("NVIDIA A10", architecture="ampere", compute_units=72), "bf16").specification) == 125.0


def test_without_units_the_published_figure_stands() -> None:
    """The source says so, and the peak at another clock follows from it."""
    peaks = peaks_of(nvidia("NVIDIA H100 80GB HBM3", compute_units=None), "fp8_e4m3")
    assert (tera(peaks.specification), peaks.source) == (1979.0, "published")
    assert tera(peaks.highest) == 2141.0


def test_without_a_specification_only_the_highest_clock_gives_a_peak() -> None:
    """A part of a known architecture that no table lists."""
    peaks = peaks_of(nvidia("NVIDIA H100 of some OEM"), "bf16")
    assert (peaks.specification, tera(peaks.highest), peaks.confidence) == (None, 1071.0, None)


def test_a_cut_format_has_its_own_figure_and_the_others_are_derived() -> None:
    """H800: full matrix units and 1 TFLOPS of fp64. A800: nobody knows its fp64."""
    h800 = nvidia("NVIDIA H800", pci_device_id="10de:2324")
    assert [tera(peaks_of(h800, name).specification) for name in ("bf16", "fp64")] == [989.4, 1.0]
    a800 = nvidia("NVIDIA A800-SXM4-80GB", architecture="sm80", compute_units=108)
    assert [tera(peaks_of(a800, name).specification) for name in ("bf16", "fp64")] == [311.9, None]


def test_a_share_of_a_part_has_the_peak_of_its_own_units() -> None:
    """An instance of 16 units of an H100, and a partition of 38 of an MI300X; the figure of the whole is not theirs."""
    instance = nvidia("NVIDIA H100 80GB HBM3 MIG 1g.10gb", pci_device_id="10de:2330", compute_units=16)
    assert tera(peaks_of(instance, "bf16").specification) == 119.9
    partition = DeviceFacts(vendor="amd", name="AMD Instinct MI300X", architecture="gfx942", compute_units=38)
    assert tera(peaks_of(partition, "bf16").specification) == 163.4
    other = nvidia("NVIDIA H20", compute_units=39)
    assert peaks_of(other, "bf16").specification is None


@pytest.mark.parametrize(
    "facts",
    [
        nvidia("NVIDIA GeForce RTX 4090", architecture="sm89"),
        nvidia("NVIDIA Unheard Of", architecture="sm999"),
        nvidia("NVIDIA B300 SXM6 AC MIG 1g.34gb", architecture="sm103"),
        nvidia("NVIDIA GB10", architecture="sm121", compute_units=48),
        nvidia("NVIDIA H100 80GB HBM3", compute_units=None, maximum_clock_hertz=None, vendor="amd"),
        DeviceFacts(vendor="", name="cpu-0", compute_units=64),
    ],
)
def test_peak_is_unknown_rather_than_a_guess(facts: DeviceFacts) -> None:
    """Parts with cut matrix units, slices, unknown architectures and processors have no peak."""
    peaks = peaks_of(facts, "bf16")
    assert (peaks.specification, peaks.highest, peaks.at(1e9)) == (None, None, None)


def test_name_is_matched_by_whole_words() -> None:
    """An H200 is not taken for an H20, and the PCI id goes before the name."""
    other = find_accelerator(nvidia("NVIDIA H200 of some OEM"))
    assert other is None or other.name != "NVIDIA H20"
    by_id = find_accelerator(nvidia("NVIDIA H200", pci_device_id="10DE:2329"))
    assert by_id is not None and by_id.name == "NVIDIA H20"


def test_infinity_cache_is_known_where_the_driver_hides_it() -> None:
    """MI300 reports its L2 only; the last level is 256 MiB."""
    assert table_cache_bytes("gfx942") == 256 << 20
    assert table_cache_bytes("sm90") is None


def test_tables_agree_with_each_other() -> None:
    """Where units, clock and operations per clock are all known, their product is the published figure."""
    compared = 0
    for row in PARTS.values():
        if not (row.derive and row.compute_units):
            continue
        facts = DeviceFacts(vendor=row.vendor, name=row.name, compute_units=row.compute_units)
        for name in FORMATS:
            peak, printed = peaks_of(facts, name), getattr(row, "int8_tops" if name == "int8" else f"{name}_tflops")
            if peak.source == "specification clock" and printed is not None:
                compared += 1
                assert peak.specification == pytest.approx(printed * 1e12, rel=0.0151), (row.name, name)
    assert compared > 150
    assert all(row.source for row in load_table("arch_flops.csv", Architecture))


def test_rows_name_a_source_and_what_they_rest_on() -> None:
    """Each row, and no PCI id stands in two."""
    assert all(row.source for row in PARTS.values())
    assert {row.confidence for row in PARTS.values()} == {"published", "recalled"}
    ids = [each for row in PARTS.values() for each in row.pci_device_ids]
    assert len(ids) == len(set(ids))


def test_known_corrections_stay() -> None:
    """Links of 76.8 GB/s of MI350, eight of H800, and figures by die of MI250X."""
    assert [PARTS[f"AMD Instinct MI35{part}X"].link_gigabytes_per_second for part in "05"] == [76.8, 76.8]
    assert PARTS["NVIDIA H800"].link_count == PARTS["NVIDIA A800-SXM4-80GB"].link_count == 8
    die = PARTS["AMD Instinct MI250X"]
    assert (die.devices_per_board, die.compute_units, die.memory_gigabytes) == (2, 110, 64)
