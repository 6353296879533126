"""The device that torch sees is the one that was asked for, and the load runs on the processors near it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.needs_torch import NO_TORCH  # skips this file where torch is not installed

from nodevet.agent.load.run import _of_device
from nodevet.checks.burnin import device as module
from nodevet.checks.burnin.device import open_device
from nodevet.checks.burnin.errors import RefusedError
from nodevet.checks.burnin.host import processors_near
from nodevet.checks.burnin.identity import Visible, address_of, compared
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.burnin.workload import Run, run_gemm
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Device, DeviceKind, Result, ResultState
from nodevet.checks.engine.completeness import Standing, account

UUID = "GPU-ffc79498-8ff3-c2dc-3b0d-fafd804516ae"
SHOWN = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"
OTHER = "11111111-8ff3-c2dc-3b0d-fafd804516ae"
PCI = "0000:1b:00.0"
AMD = "GPU-18f2ab7d9d9c6c21"
AMD_SHOWN = "31386632-6162-3764-3964-396336633231"
"""torch prints the characters of AMD's name as bytes."""


@pytest.fixture(autouse=True)
def processors() -> Iterator[None]:
    """Give back all processors and threads."""
    assert NO_TORCH
    allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
    yield
    os.sched_setaffinity(0, allowed)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("uuid", "pci", "visible", "by"),
    [
        (UUID, PCI, Visible(count=1, name="H100", uuid=SHOWN, pci="0000:1b:00"), "uuid"),
        (UUID, None, Visible(count=8, name="H100", uuid=SHOWN.upper()), "uuid"),
        (AMD, PCI, Visible(count=1, name="MI300X", uuid=AMD_SHOWN), "uuid"),
        (AMD, None, Visible(count=8, name="MI300X", uuid="18f2ab7d9d9c6c21"), "uuid"),
        (UUID, "00000000:1B:00.0", Visible(count=1, name="H100", uuid=OTHER, pci="0000:1b:00"), "pci"),
        (UUID, PCI, Visible(count=1, name="H100", pci="0000:1b:00"), "pci"),
        (UUID, PCI, Visible(count=1, name="H100", uuid="00000000-0000-0000-0000-000000000000"), ""),
        (UUID, PCI, Visible(count=1, name="H100"), ""),
        (UUID, PCI, Visible(count=1, name="H100 MIG 1g.10gb", uuid=OTHER, is_instance=True), ""),
        ("GPU-nonsense", None, Visible(count=1, name="H100", uuid=""), ""),
    ],
)
def test_a_device_is_recognised_by_its_uuid_or_address(uuid: str, pci: str | None, visible: Visible, by: str) -> None:
    """Both vendors' ways of writing a UUID; where a release of torch tells neither, only one device may be visible."""
    assert compared(uuid, pci, visible) == by


@pytest.mark.parametrize(
    ("uuid", "pci", "visible"),
    [
        (UUID, None, Visible(count=1, name="H100", uuid=OTHER)),
        (UUID, PCI, Visible(count=1, name="H100", uuid=OTHER, pci="0000:2b:00")),
        (UUID, PCI, Visible(count=1, name="H100", uuid=OTHER)),
        (UUID, PCI, Visible(count=1, name="H100", pci="0001:1b:00")),
        (UUID, PCI, Visible(count=8, name="H100")),
        (AMD, None, Visible(count=1, name="MI300X", uuid="31386632-6162-3764-3964-396336633232")),
        (UUID, PCI, Visible(count=1, name="H100 MIG 1g.10gb", pci="0000:2b:00", is_instance=True)),
    ],
)
def test_another_device_is_refused(uuid: str, pci: str | None, visible: Visible) -> None:
    """Its result would stand for a device that never ran."""
    with pytest.raises(RefusedError, match=f"another device is visible: .*asked for {uuid}.*nothing was loaded"):
        compared(uuid, pci, visible)


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        (SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0), "0000:1b:00"),
        (SimpleNamespace(pci_domain_id=0x10, pci_bus_id=1, pci_device_id=31), "0010:01:1f"),
        (SimpleNamespace(pci_bus_id=0x1B, pci_device_id=0), None),
        (SimpleNamespace(pci_domain_id=-1, pci_bus_id=0x1B, pci_device_id=0), None),
        (SimpleNamespace(), None),
    ],
)
def test_the_address_of_the_visible_device(properties: SimpleNamespace, address: str | None) -> None:
    """Releases of torch that tell no address tell None, not 0."""
    assert address_of(properties) == address


def show(monkeypatch: pytest.MonkeyPatch, **told: object) -> None:
    """Show one GPU with the properties *told*."""
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, clock_rate=None, **told
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)


class Quiet:
    """Lets the workload go on."""

    def known(self, result: Result) -> None:
        """Take nothing."""

    def pause(self) -> None:
        """Go on."""

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """No load may begin."""
        raise AssertionError(f"loading: {phase}")


def test_a_load_of_another_device_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown, with the names of both, and no format behind it is tried."""
    show(monkeypatch, uuid=OTHER)
    request = GemmRequest(device=UUID, dtype="bf16", seconds=0.1, uuid=UUID, pci=PCI)
    result = run_gemm(Run(request, SystemClock()), Quiet())
    assert (result.state, result.conditions["refusal"]) == (ResultState.REFUSED, "device")
    assert OTHER in result.detail and UUID in result.detail
    assert account((), (result,)).accounts[0].standing is Standing.UNPROVEN


def test_the_right_device_is_opened_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result tells by what it was recognised."""
    show(monkeypatch, uuid=SHOWN, pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    opened = open_device(UUID, uuid=UUID, pci=PCI)
    assert opened.facts_of_place["recognised_by"] == "uuid"
    assert opened.facts_of_place["visible_pci"] == "0000:1b:00"
    assert open_device(UUID).facts_of_place == {}


def test_each_request_carries_the_names_of_its_accelerator() -> None:
    """A processor has none."""
    board = Device(
        id=UUID, uuid=UUID, pci=PCI, kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="any", backend="nvidia"
    )
    request = GemmRequest(device=UUID, dtype="bf16", seconds=0.1)
    assert (_of_device(request, board).uuid, _of_device(request, board).pci) == (UUID, PCI)
    socket = Device(id="cpu-0", kind=DeviceKind.CPU, vendor="", model="any", backend="host")
    assert _of_device(request, socket) == request


def tree(folder: Path, node: str | None, processors: str) -> str:
    """Return the root of a machine whose GPU lies at *node*."""
    place = folder / "sys/bus/pci/devices" / PCI
    place.mkdir(parents=True)
    if node is not None:
        (place / "numa_node").write_text(f"{node}\n")
        listed = folder / f"sys/devices/system/node/node{node}"
        listed.mkdir(parents=True)
        (listed / "cpulist").write_text(f"{processors}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("node", "listed", "told"),
    [
        ("1", "0-1,8", (1, frozenset({0, 1, 8}))),
        ("0", "", (0, frozenset())),
        ("-1", "0-1", (None, frozenset())),
        (None, "", (None, frozenset())),
    ],
)
def test_the_processors_near_a_device(
    tmp_path: Path, node: str | None, listed: str, told: tuple[int | None, frozenset[int]]
) -> None:
    """-1 is no node, and a kernel without NUMA tells no file."""
    assert processors_near(PCI.upper(), tree(tmp_path, node, listed)) == told


def test_a_load_runs_on_the_processors_near_its_device(tmp_path: Path) -> None:
    """Those of them that it may use; it is told how many."""
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    root = tree(tmp_path, "1", f"{first},{max(allowed) + 1}")
    assert module._bind_near(PCI, root) == {"numa_node": 1, "bound_processors": 1}
    assert os.sched_getaffinity(0) == {first}
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("listed", ["", "8191"])
def test_a_load_runs_where_it_is_if_no_processor_is_near(tmp_path: Path, listed: str) -> None:
    """None is told, or a container was given none of them."""
    allowed = os.sched_getaffinity(0)
    assert module._bind_near(PCI, tree(tmp_path, "0", listed)) == {"numa_node": 0, "bound_processors": None}
    assert os.sched_getaffinity(0) == allowed
    assert module._bind_near(None) == {}


def test_a_load_runs_where_it_is_if_it_may_not_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement is what counts; where it ran is told."""

    def refuse(_pid: int, _processors: object) -> None:
        raise PermissionError

    root = tree(tmp_path, "0", str(min(os.sched_getaffinity(0))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        assert module._bind_near(PCI, root) == {"numa_node": 0, "bound_processors": None}
