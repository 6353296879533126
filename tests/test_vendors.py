"""Vendors are rows of tables: what judges, shows and runs knows none of them by name."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.views import GPU, gpu, healthy, judge, of, reader

from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.reader_main import backend_module
from nodevet.checks.core.model import WHOLE, Action, Failure, FailureKind, Outcome, ReaderState
from nodevet.checks.engine.baseline import requirements
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import Vendor, backend_names, vendor_of, vendors

NAMES = re.compile(r"nvidia|nvml|nvlink|\bxid|\bamd|rocm|xgmi|habana|gaudi", re.IGNORECASE)
ROOMS_OF_VENDORS = ("backends", "burnin", "kernel_log", "reference")

ALLOWED = {
    "agent/commands/ack.py": "an example in a help text",
    "agent/commands/explain.py": "people say xid 79 for short",
    "agent/commands/topo.py": "names the program whose output it reads",
    "agent/config/command_specs.py": "an example in a message",
    "checks/topology/comparison.py": "orders the links that a matrix names",
    "checks/topology/saved.py": "reads what nvidia-smi topo -m prints",
}
"""Where a vendor may be named, and why."""


def named(source: str) -> list[str]:
    """Return the texts of *source* that name a vendor; what documents it does not count."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and NAMES.search(node.value)
    ]


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield every file that must not know a vendor, with its text."""
    for folder in ("agent", "checks", "exporters"):
        for path in sorted((repository / folder).rglob("*.py")):
            if not set(ROOMS_OF_VENDORS) & set(path.parts):
                yield str(path.relative_to(repository)), path.read_text(encoding="utf-8")


def test_nothing_above_the_backends_names_a_vendor(repository: Path) -> None:
    """A third vendor is a backend and rows of tables."""
    found = {path: texts for path, text in sources(repository) if (texts := named(text))}
    assert {path: texts for path, texts in found.items() if path not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an exception that is not needed any more"


def test_a_name_in_the_code_would_be_found() -> None:
    """The search is no search for nothing."""
    assert named("'''Of NVIDIA.'''\nif vendor == 'amd': name = f'NVLink {n}'") == ["amd", "NVLink "]


def test_a_vendor_that_nobody_knows_is_a_vendor() -> None:
    """Its boards are judged without advice."""
    assert vendor_of("acme") == Vendor(vendor="acme")
    assert {row.vendor for row in load_table("vendors.csv", Vendor)} >= {"nvidia", "amd", "habana"}


@pytest.mark.parametrize(
    ("vendor", "words"),
    [("nvidia", "(nvidia-smi -e 1)"), ("amd", "(amdgpu.ras_enable=1 "), ("acme", "reboot the node")],
)
def test_advice_is_that_of_the_vendor_of_the_board(vendor: str, words: str) -> None:
    """Nobody is told the command of another vendor."""
    off = healthy({("ecc_enabled", WHOLE): False}, device=gpu(vendor=vendor))
    required = {**off.required, GPU: frozenset({"ecc_uncorrected_errors"})}
    finding = of(judge("memory-errors", msgspec.structs.replace(off, required=required)), "memory.ecc_disabled")
    assert finding.outcome is Outcome.WARN
    assert words in finding.message
    assert ("nvidia" in finding.message) is (vendor == "nvidia")


@pytest.mark.parametrize(
    ("vendor", "action", "words"),
    [
        ("nvidia", Action.REBOOT, "reboot the node"),
        ("amd", Action.INSPECT, "install the one that ROCm ships"),
        ("acme", Action.REBOOT, "install one release"),
    ],
)
def test_parts_of_two_releases_are_mended_as_the_vendor_says(vendor: str, action: Action, words: str) -> None:
    """A reboot mends one, another package the other."""
    board = gpu("pci-0000:1b:00.0", vendor=vendor, backend="host", uuid=None, serial=None)
    failure = Failure(FailureKind.VERSION_MISMATCH, "what the library said", of_driver=True)
    readers = (reader("host"), reader(vendor, ReaderState.FAILED, failure=failure))
    findings = judge("inventory", msgspec.structs.replace(healthy(), devices=(board,), readers=readers))
    found = next(entry for entry in findings if entry.code == "driver.version_mismatch")
    assert (found.outcome, found.action, words in found.message) == (Outcome.FAIL, action, True), found.message


@pytest.mark.parametrize(
    ("model", "quantities"),
    [
        ("AMD Instinct MI300X", {"temperature_celsius", "clock_hertz", "power_watts", "link_active"}),
        ("MI308X", {"temperature_celsius", "clock_hertz", "power_watts", "link_active"}),
        ("MI300A", {"temperature_celsius", "clock_hertz", "power_watts"}),
        ("Radeon Instinct MI50 32GB", {"temperature_celsius", "clock_hertz"}),
        ("AMD Radeon PRO W7900", set()),
    ],
)
def test_what_a_board_must_report_follows_every_name_that_it_goes_by(model: str, quantities: set[str]) -> None:
    """Releases of ROCm leave out the family that the board belongs to."""
    required = requirements(gpu(vendor="amd", model=model, backend="amd"))
    assert required - {"ecc_uncorrected_errors"} == quantities


def test_a_vendor_that_is_read_is_a_folder_and_a_row(repository: Path) -> None:
    """Nothing else names the backends: configuration, reader, topology and loads follow from the row."""
    folders = repository / "checks" / "backends"
    others = {"command", "host"}
    there = {path.parent.name for path in folders.glob("*/backend.py")} - others
    assert {row.vendor for row in vendors() if row.backend} == there
    assert backend_names() == ("host", *(row.vendor for row in vendors() if row.vendor in there))
    for name in backend_names():
        assert callable(importlib.import_module(backend_module(name).module).open_backend)
    for row in vendors():
        assert row.backend or not (row.topology or row.event_poll_seconds or row.compute), row.vendor


def test_a_backend_that_no_row_names_is_not_loaded() -> None:
    """Whatever a message to a reader says: no module is imported by a name from outside."""
    with pytest.raises(BackendError, match="no backend 'habana': there are host, nvidia, amd"):
        backend_module("habana")
