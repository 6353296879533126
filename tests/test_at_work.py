"""Which device a reader was busy with: the whole name in its call, not a part of another name."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from nodevet.agent.readers.at_work import device_at_work
from nodevet.checks.core.model import Device, DeviceKind

UUID = "GPU-5f1c2d3e-0000-4000-8000-000000000001"


class Call(NamedTuple):
    """A process inside a call."""

    call: str
    in_call: bool = True


def device(name: str, *, uuid: str | None = None, pci: str | None = None) -> Device:
    """Return a device of that identifier."""
    kind = DeviceKind.ACCELERATOR
    return Device(id=name, kind=kind, vendor="nvidia", model="NVIDIA H100", backend="nvml", uuid=uuid, pci=pci)


PLAIN, FAR, OTHER = (device(name, pci=name) for name in ("0000:01:00.0", "10000:01:00.0", "0000:02:00.0"))
BOARD, PART = device(UUID, uuid=UUID), device(f"MIG-{UUID}/1/0", uuid=f"MIG-{UUID}/1/0")


@pytest.mark.parametrize("devices", [(PLAIN, FAR, OTHER), (FAR, OTHER, PLAIN)])
@pytest.mark.parametrize("following", [None, PLAIN.id, FAR.id, OTHER.id])
@pytest.mark.parametrize("named", [PLAIN, FAR, OTHER])
def test_an_address_in_a_wide_domain_is_another_device(
    named: Device, following: str | None, devices: tuple[Device, ...]
) -> None:
    """Behind a controller of Intel VMD the domain has five digits, and the last four may be those of a sibling."""
    assert device_at_work(Call(f"nvmlDeviceGetTemperature of {named.pci}"), devices, following) == named.id


@pytest.mark.parametrize("named", [BOARD, PART])
def test_a_partition_whose_name_has_that_of_its_board_is_another_device(named: Device) -> None:
    """So R470 and older name a MIG device."""
    for devices in ((BOARD, PART), (PART, BOARD)):
        for following in (None, BOARD.id, PART.id):
            assert (
                device_at_work(Call(f"nvmlDeviceGetUtilizationRates of {named.uuid}"), devices, following) == named.id
            )


def test_a_call_that_names_no_listed_device() -> None:
    """An address stands for a device that was never listed; a call for all is no doing of the one that follows."""
    listed = (PLAIN, OTHER)
    assert device_at_work(Call("nvmlDeviceGetHandleByPciBusId of 20000:03:00.0"), listed, PLAIN.id) == "20000:03:00.0"
    assert device_at_work(Call("nvmlEventSetWait"), listed, PLAIN.id) is None
    assert device_at_work(Call("", in_call=False), listed, PLAIN.id) == PLAIN.id
