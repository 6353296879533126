"""Which part of a device a load reaches: of a socket, of a board, of the processors' time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.burnin import NO_TORCH  # skips this file where torch is not installed

from nodevet.checks.burnin import device, host
from nodevet.checks.burnin.device import open_device
from nodevet.checks.burnin.host import online_processors
from nodevet.checks.burnin.library import torch

Machine = Callable[..., None]


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Show processors of so many cores in each of *sockets*, all of them for this process, and a quota."""
    assert NO_TORCH
    own, threads = os.sched_getaffinity(0), torch.get_num_threads()

    def show(sockets: tuple[int, ...], quota: float | None = None, online: str = "", core_ids: str = "") -> None:
        of = [socket for socket, cores in enumerate(sockets) for _ in range(cores)]

        def topology(cpu: int, name: str, otherwise: str) -> str:
            if name == "core_id" and core_ids:
                return core_ids[cpu]
            return str(of[cpu]) if name == "physical_package_id" and cpu < len(of) else otherwise

        monkeypatch.setattr(host, "_topology", topology)
        monkeypatch.setattr(device, "cpu_quota", lambda: quota)
        monkeypatch.setattr(device, "online_processors", lambda: online_processors(tree(online)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(len(of))))
        monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, _processors: None)

    def tree(online: str) -> str:
        folder = tmp_path / "sys/devices/system/cpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "online").write_text(f"{online}\n")
        return str(tmp_path)

    yield show
    monkeypatch.undo()
    os.sched_setaffinity(0, own)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "whole"), [("NVIDIA A100-SXM4-40GB", True), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", False)]
)
def test_a_load_on_one_instance_of_a_board_proves_nothing_of_the_board(
    monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
) -> None:
    """CUDA shows one instance of a board that is split, whatever its UUID: the others are not loaded."""
    properties = SimpleNamespace(name=name, major=8, minor=0, multi_processor_count=14, clock_rate=None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    assert (not open_device("GPU-aaaa").left_out) is whole


@pytest.mark.parametrize(("quota", "whole"), [(None, True), (64.0, True), (4.0, True), (3.99, False), (0.5, False)])
def test_a_load_under_a_quota_of_time_proves_nothing_of_a_socket(
    machine_of: Machine, quota: float | None, whole: bool
) -> None:
    """Half the time of its cores is half of its heat; all sockets are loaded at once, and share the quota."""
    machine_of(sockets=(2, 2), quota=quota)
    told = open_device("cpu-0").left_out
    assert (not told) is whole
    assert (f"the time of {quota:g} of 4 cores" in told) is (not whole) if quota else not told


@pytest.mark.parametrize(("online", "left_out"), [("0-1", 0), ("0-3,8", 3), ("", 0), ("0,2", 1)])
def test_processors_that_a_container_was_never_given_are_left_out(
    machine_of: Machine, online: str, left_out: int
) -> None:
    """Its first process has no more than the load, and the kernel gives none of them."""
    machine_of(sockets=(2,), online=online)
    told = open_device("cpu-0").left_out
    assert told.startswith(f"{left_out} of ") if left_out else not told


def test_cores_of_two_dies_are_counted_by_their_siblings(machine_of: Machine) -> None:
    """The kernel numbers cores anew on each die: by its number alone half of them would stay at rest."""
    machine_of(sockets=(4,), core_ids="01" * 2)
    assert open_device("cpu-0").threads == 4


@pytest.mark.parametrize(
    ("name", "value", "is_part"),
    [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", True),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100", False),
        ("HSA_CU_MASK", "0:0-3", True),
        ("ROC_GLOBAL_CU_MASK", "0xf", True),
        ("ROC_GLOBAL_CU_MASK", "", False),
    ],
)
def test_a_load_that_gets_a_share_of_a_board_proves_nothing_of_the_board(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_part: bool
) -> None:
    """A job of SLURM's gres/mps, or a mask of compute units."""
    properties = SimpleNamespace(name="NVIDIA V100", major=7, minor=0, multi_processor_count=80, clock_rate=None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setenv(name, value)
    assert (name in open_device("GPU-aaaa").left_out) is is_part
