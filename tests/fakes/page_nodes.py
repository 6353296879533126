"""Every kind of node that the status page must show: healthy, ill, unread, huge, empty and hostile."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from fakes.snapshots import (
    at,
    cpu_node,
    degraded_node,
    failed_node,
    gpu,
    gpu_node,
    starting_node,
    unknown_node,
    with_findings,
)

from nodevet.checks.core.model import (
    CheckRun,
    Device,
    Finding,
    Link,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Reading,
    Snapshot,
    State,
)

__all__ = ["EVIL", "NODES"]

EVIL = "\"><script>alert(1)</script>' onmouseover=x \x00\x1b[31m\u202e\ud800 &amp;"


def zero_devices() -> Snapshot:
    """A machine of which nothing at all was found."""
    return gpu_node(devices=(), samples=(), results=(), device_verdicts={}, findings=(), readers=(), checks=())


def single_processor() -> Snapshot:
    """A small machine: one processor, no accelerator, no load."""
    node = cpu_node()
    return msgspec.structs.replace(node, devices=node.devices[:1], results=())


def sixteen() -> Snapshot:
    """Sixteen accelerators, of which only eight are read."""
    node = gpu_node()
    more = tuple(gpu(index) for index in range(8, 16))
    verdicts = {**node.device_verdicts, **{device.id: node.verdict for device in more}}
    return msgspec.structs.replace(node, devices=(*node.devices, *more), device_verdicts=verdicts)


def released() -> Snapshot:
    """Devices are closed on request."""
    node = gpu_node()
    readers = tuple(msgspec.structs.replace(reader, state=ReaderState.RELEASED) for reader in node.readers)
    return msgspec.structs.replace(node, readers=readers)


def stopped() -> Snapshot:
    """The agent is about to end."""
    node = gpu_node()
    return msgspec.structs.replace(node, agent=msgspec.structs.replace(node.agent, stopping=True))


def full_mesh() -> Snapshot:
    """Eight accelerators with seven links each, one to every other, of which one is down."""
    node = gpu_node()
    others = [device for device in node.devices if device.backend != "nvidia"]
    mesh = tuple(_in_mesh(index) for index in range(8))
    samples = [sample for sample in node.samples if sample.backend != "nvidia"]
    template = next(sample for sample in node.samples if sample.backend == "nvidia")
    for index, device in enumerate(mesh):
        readings = tuple(
            Reading("link_active", not (index == 2 and link.port == 4), Part(PartKind.LINK, index=link.port))
            for link in device.links
        )
        samples.append(msgspec.structs.replace(template, backend="amd", device=device.id, readings=readings))
    verdicts = {device.id: node.verdict for device in (*others, *mesh)}
    return msgspec.structs.replace(
        node, devices=(*others, *mesh), samples=tuple(samples), device_verdicts=verdicts, results=()
    )


def _in_mesh(index: int) -> Device:
    peers = [gpu(other).pci for other in range(8) if other != index]
    links = tuple(Link(port, peer, "xGMI") for port, peer in enumerate(peers))
    return gpu(index, vendor="amd", model="AMD Instinct MI300X", backend="amd", links=links)


def hostile() -> Snapshot:
    """Everything that names itself does so with ill will."""
    device = Device(
        id=EVIL, kind=gpu(0).kind, vendor=EVIL, model=EVIL, backend="nvidia", pci=EVIL, links=(Link(0, EVIL),)
    )
    finding = Finding(check="inventory", code="device.lost", outcome=Outcome.FAIL, message=EVIL * 40, device=EVIL)
    node = with_findings(gpu_node(node=EVIL, devices=(device,)), (finding,), State.FAILED)
    agent = msgspec.structs.replace(node.agent, notices=(EVIL,), load=EVIL, configuration_message=EVIL, version=EVIL)
    run = CheckRun(check=EVIL, time=at(), duration_seconds=0.1, success=False, error=EVIL)
    return msgspec.structs.replace(node, agent=agent, checks=(run,), scope=EVIL)


NODES: dict[str, Callable[[], Snapshot]] = {
    "ok": gpu_node,
    "degraded": degraded_node,
    "failed": failed_node,
    "unknown": unknown_node,
    "starting": starting_node,
    "stopped": stopped,
    "released": released,
    "simulated": lambda: msgspec.structs.replace(degraded_node(), simulated=True),
    "processors": cpu_node,
    "one processor": single_processor,
    "sixteen": sixteen,
    "nothing": zero_devices,
    "mesh": full_mesh,
    "hostile": hostile,
}
"""What each is called in tests."""
