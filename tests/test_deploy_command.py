"""The commands that we ship as examples: what they print is accepted, and what goes wrong below them is told."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.site_tool import program

from nodevet.checks.core.model import ReadingStatus
from nodevet.checks.core.readings import Document, doubts, parse, reading_of

PCI = "0000:4d:00.0"
MEBIBYTE = 1 << 20

FIELDS = (
    "bus_id", "uuid", "serial", "name", "driver_version", "temperature.aip", "power.draw", "memory.total",
    "memory.used", "utilization.aip", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
CARD = {
    "bus_id": PCI,
    "uuid": "01P0-HL2080A0-15-AAAA00-01-02-03",
    "serial": "AM00000001",
    "name": "HL-225",
    "driver_version": "1.18.0-0000000",
    "temperature.aip": "31",
    "power.draw": "79",
    "memory.total": "98304",
    "memory.used": "24065",
    "utilization.aip": "55",
    "ecc.errors.corrected.volatile.total": "2",
    "ecc.errors.uncorrected.volatile.total": "0",
}

HL_SMI = """#!/bin/sh
[ "$1" = -Q ] && [ "$3" = -f ] && [ "$4" = csv,noheader,nounits ] || { echo "bad usage: $*" >&2; exit 2; }
case $2 in *ecc*) [ -e {directory}/no-ecc ] && { echo "Error: unknown field $2" >&2; exit 1; } ;; esac
exec awk -F '|' -v wanted="$2" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; n = split(wanted, names, ","); next }
    { for (i = 1; i <= n; i++) printf "%s%s", $column[names[i]], i < n ? ", " : "\\n" }' {directory}/cards
"""


class FakeHlSmi:
    """A hl-smi that answers queries from a table, as the vendor's manual describes them."""

    def __init__(self, directory: Path) -> None:
        """Write the program into *directory*."""
        self._directory = directory
        self.program = program(directory / "hl-smi", HL_SMI.replace("{directory}", str(directory)))

    def list(self, *cards: dict[str, str], knows_ecc: bool = True) -> None:
        """List *cards* from now on; an older release does not know the fields of memory errors."""
        rows = [FIELDS, *([card[field] for field in FIELDS] for card in cards)]
        (self._directory / "cards").write_text("".join("|".join(row) + "\n" for row in rows))
        if not knows_ecc:
            (self._directory / "no-ecc").touch()


@pytest.fixture
def hl_smi(tmp_path: Path) -> FakeHlSmi:
    """A hl-smi that lists one healthy card."""
    fake = FakeHlSmi(tmp_path)
    fake.list(CARD)
    return fake


def run(argv: Sequence[str | Path], **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Run *argv* as the agent does, with *environment* beside PATH."""
    given = {key: str(value) for key, value in environment.items()}
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=20, check=False, env={"PATH": os.environ["PATH"], **given}
    )


def accepted(done: subprocess.CompletedProcess[str]) -> Document:
    """Return the document that the agent would accept, without a doubt."""
    assert done.returncode == 0, done.stderr
    found, mistakes = parse(done.stdout.encode())
    assert found is not None, mistakes
    assert doubts(found) == ()
    return found


def values(document: Document, device: int = 0) -> dict[str, object]:
    """Return what was measured of one device by quantity."""
    readings = map(reading_of, document.devices[device].readings)
    return {entry.quantity: entry.value for entry in readings if entry.status is ReadingStatus.OK}


@pytest.fixture
def gaudi(repository: Path) -> Path:
    """The command for Gaudi."""
    return repository / "deploy" / "command" / "gaudi-hl-smi"


def test_a_gaudi_card_arrives_with_its_identity_and_units(gaudi: Path, hl_smi: FakeHlSmi, tmp_path: Path) -> None:
    """Every figure of hl-smi is in our unit, and the number of the device node is that of the kernel."""
    board = tmp_path / "sys/devices/pci0000:4c" / PCI
    board.mkdir(parents=True)
    node = tmp_path / "sys/class/accel/accel5"
    node.mkdir(parents=True)
    (node / "device").symlink_to(board)
    found = accepted(run([gaudi], HL_SMI=hl_smi.program, NODEVET_ROOT=tmp_path))
    (card,) = found.devices
    assert (card.pci, card.minor, card.model, card.serial) == (PCI, 5, "HL-225", "AM00000001")
    assert found.versions == {"driver": "1.18.0-0000000"}
    assert values(found) == {
        "temperature_celsius": 31,
        "power_watts": 79,
        "memory_total_bytes": 98304 * MEBIBYTE,
        "memory_used_bytes": 24065 * MEBIBYTE,
        "utilization_ratio": 0.55,
        "ecc_corrected_errors": 2,
        "ecc_uncorrected_errors": 0,
    }


def test_a_card_that_hl_smi_leaves_out_is_lost_where_its_driver_says_so(
    gaudi: Path, hl_smi: FakeHlSmi, tmp_path: Path
) -> None:
    """A card in reset, or one of which the kernel says nothing, is left out: nodevet does not know what it is."""
    for number, status in enumerate(("operational", "disabled", "in reset", "needs reset")):
        board = tmp_path / f"sys/devices/pci0000:4c/0000:{0x4D + number:02x}:00.0"
        board.mkdir(parents=True)
        (board / "status").write_text(f"{status}\n")
        node = tmp_path / f"sys/class/accel/accel{number}"
        node.mkdir(parents=True)
        (node / "device").symlink_to(board)
    found = accepted(run([gaudi], HL_SMI=hl_smi.program, NODEVET_ROOT=tmp_path))
    told = {card.pci: card.failure and (card.failure.kind, card.failure.detail) for card in found.devices}
    assert told == {
        PCI: None,
        "0000:4e:00.0": ("lost", "hl-smi does not list it, and its driver says 'disabled'"),
        "0000:50:00.0": ("lost", "hl-smi does not list it, and its driver says 'needs reset'"),
    }


def test_what_hl_smi_does_not_know_is_not_made_up(gaudi: Path, hl_smi: FakeHlSmi) -> None:
    """N/A is unsupported, nonsense is an error, and an older release without a field still gives the others."""
    hl_smi.list({**CARD, "power.draw": "N/A", "utilization.aip": "busy", "uuid": "N/A"}, knows_ecc=False)
    found = accepted(run([gaudi], HL_SMI=hl_smi.program))
    statuses = {entry.quantity: entry.status for entry in found.devices[0].readings}
    assert found.devices[0].uuid is None
    assert statuses == {
        "temperature_celsius": ReadingStatus.OK,
        "power_watts": ReadingStatus.UNSUPPORTED,
        "memory_total_bytes": ReadingStatus.OK,
        "memory_used_bytes": ReadingStatus.OK,
        "utilization_ratio": ReadingStatus.ERROR,
        "ecc_corrected_errors": ReadingStatus.UNAVAILABLE,
        "ecc_uncorrected_errors": ReadingStatus.UNAVAILABLE,
    }
    assert found.devices[0].readings[-1].detail == "hl-smi refuses to tell ecc.errors.uncorrected.volatile.total"


def test_a_hl_smi_that_fails_is_told(gaudi: Path, tmp_path: Path) -> None:
    """Absent, refusing or printing something else: a message on standard error and no document."""
    absent = run([gaudi], HL_SMI=tmp_path / "absent")
    refusing = run([gaudi], HL_SMI=program(tmp_path / "refuses", "#!/bin/sh\necho no driver >&2\nexit 1\n"))
    other = run([gaudi], HL_SMI=program(tmp_path / "other", "#!/bin/sh\necho No devices were found\n"))
    assert [(done.returncode, done.stdout) for done in (absent, refusing, other)] == [(1, "")] * 3
    assert "absent cannot be started: No such file or directory" in absent.stderr
    assert "no driver" in refusing.stderr
    assert "is the habanalabs driver loaded?" in refusing.stderr
    assert "hl-smi printed 'No devices were found\\n', expected 12 values in a row" in other.stderr


@pytest.mark.captures
def test_captured_cards_arrive_as_they_were(gaudi: Path, hl_smi: FakeHlSmi, captures: Path) -> None:
    """The facts of real tables of hl-smi, told in the form of a query, arrive unchanged."""
    lines = (captures / "hlsmi.jsonl").read_text().splitlines()
    cards: list[dict[str, Any]] = [card for line in lines for card in json.loads(line)["expect"]["aips"]]
    assert cards
    for card in cards:
        told = {"bus_id": card["bus"], "name": card["name"], "temperature.aip": str(card["temp_c"])}
        told |= {"power.draw": str(card["power_w"]), "memory.used": str(card["mem_used_mib"])}
        hl_smi.list({**CARD, **told, "memory.total": str(card["mem_total_mib"])})
        found = accepted(run([gaudi], HL_SMI=hl_smi.program))
        measured = values(found)
        assert (found.devices[0].pci, found.devices[0].model) == (card["bus"], card["name"])
        assert (measured["temperature_celsius"], measured["power_watts"]) == (card["temp_c"], card["power_w"])
        assert measured["memory_used_bytes"] == card["mem_used_mib"] * MEBIBYTE
        assert measured["memory_total_bytes"] == card["mem_total_mib"] * MEBIBYTE


def test_the_smallest_example_tells_a_temperature_a_failure_and_an_absence(repository: Path, tmp_path: Path) -> None:
    """A card with a sensor is read, one without is a failure, and one that is gone is not listed."""
    argv: list[str | Path] = [repository / "deploy" / "command" / "example.sh", PCI, "acme", "X1"]
    assert accepted(run(argv, NODEVET_ROOT=tmp_path)).devices == ()

    sensor = tmp_path / "sys/bus/pci/devices" / PCI / "hwmon/hwmon3"
    sensor.mkdir(parents=True)
    failure = accepted(run(argv, NODEVET_ROOT=tmp_path)).devices[0].failure
    assert failure is not None
    assert failure.kind == "error"

    (sensor / "temp1_input").write_text("61500\n")
    found = accepted(run(argv, NODEVET_ROOT=tmp_path))
    assert values(found) == {"temperature_celsius": 61.5}
    assert (found.devices[0].vendor, found.devices[0].model, found.devices[0].pci) == ("acme", "X1", PCI)


@pytest.mark.parametrize("text", ["", "N/A\n", "61500\n48000\n", "6.15e4\n"])
def test_a_sensor_that_gives_no_number_gives_no_temperature(repository: Path, tmp_path: Path, text: str) -> None:
    """An empty file is not zero degrees, and of two sensors nobody said which."""
    sensor = tmp_path / "sys/bus/pci/devices" / PCI / "hwmon/hwmon3/temp1_input"
    sensor.parent.mkdir(parents=True)
    sensor.write_text(text)
    argv: list[str | Path] = [repository / "deploy" / "command" / "example.sh", PCI, "acme", "X1"]
    (card,) = accepted(run(argv, NODEVET_ROOT=tmp_path)).devices
    assert (card.readings, card.failure and card.failure.kind) == ((), "error")
