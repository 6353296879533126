"""Boards that are listed only after a load of all devices began: nobody says that they were proved."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.snapshots import cpu_node, gpu_node
from fakes.views import at, burn_in, gpu

from nodevet.agent.control.client import Session
from nodevet.agent.load.delivery import Delivery
from nodevet.agent.load.late import LateDevices
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.core.model import Device, DeviceKind, Result, State
from nodevet.checks.engine.completeness import account
from nodevet.exporters.documents.schema import burn_in_document

PATIENCE_SECONDS = 30.0
PROGRAM = Path(__file__).with_name("fakes") / "scripted_burn_in.py"


def requests(device: Device, *, asked: bool = False) -> tuple[GemmRequest, ...]:
    """Return what is planned for *device*: two formats for an accelerator of NVIDIA, nothing for what has no load."""
    formats = ("bf16", "int8") if device.vendor == "nvidia" else ()
    return tuple(GemmRequest(device=device.id, dtype=dtype, seconds=1.0, asked=asked) for dtype in formats)


def loaded(*devices: Device) -> tuple[Result, ...]:
    """Return the results of a load that verified *devices*."""
    return tuple(
        msgspec.structs.replace(burn_in(device.id), dtype=request.dtype, conditions={"load": "this"})
        for device in devices
        for request in requests(device)
    )


@pytest.mark.parametrize("before", [1, 0])
def test_what_is_listed_after_the_load_began_is_not_proved(before: int) -> None:
    """One board is late; or all are, and the processors were loaded in their place."""
    boards = (gpu("GPU-0"), gpu("GPU-1", "0000:2b:00.0"))
    (processor, _) = (device for device in cpu_node().devices if device.kind is DeviceKind.CPU)
    late = LateDevices((processor, *boards[:before]), requests)
    results = loaded(*boards[:before]) or (msgspec.structs.replace(burn_in(processor.id), dtype="fp32"),)
    assert account((), results).state is State.OK
    told = late.told((processor, *boards), results, at(60))
    proved = account((), (*results, *told))
    assert proved.state is State.UNKNOWN
    assert {(entry.device, entry.dtype) for entry in proved.unproven} == {
        (board.id, dtype) for board in boards[before:] for dtype in ("bf16", "int8")
    }
    assert "listed only after the load began" in proved.reason()
    assert {result.conditions.get("load") for result in told} == {"this" if before else None}
    assert late.told((processor, *boards), results, at(70)) == ()
    assert late.results == told


def test_what_was_there_is_not_late_and_what_has_no_load_is() -> None:
    """A board that no driver has was not loaded either, and is no news; one of another make has no format."""
    board, other = gpu(), gpu("HL-0", "0000:3b:00.0", vendor="habana", backend="habana")
    bare = gpu("pci-0000:2b:00.0", "0000:2b:00.0", backend="host", uuid=None)
    assert LateDevices((board, bare), requests).told((board, bare), loaded(board), at(60)) == ()
    (told,) = LateDevices((board,), requests).told((board, other), loaded(board), at(60))
    assert (told.devices, told.dtype) == (("HL-0",), None)
    (first, _) = LateDevices((), partial(requests, asked=True)).told((board,), (), at(60))
    assert first.conditions["asked"]


def serve(listener: socket.socket, answers: list[dict[str, Any]], asked: list[dict[str, Any]]) -> None:
    """Answer one caller after the other, hang up where an answer is empty, and take no caller after the last one."""
    while answers:
        caller, _ = listener.accept()
        with caller, caller.makefile("rb") as lines:
            for line in lines:
                asked.append(json.loads(line))
                answer = answers.pop(0) if answers else None
                if not answer:
                    break
                caller.sendall(json.dumps(answer).encode() + b"\n")
    listener.close()


def test_what_an_agents_status_adds_is_delivered_with_the_results_and_the_same_again(tmp_path: Path) -> None:
    """The agent dies behind its status: the next one gets what the first one would have got, and judges all of it."""
    document = msgspec.to_builtins(burn_in_document(gpu_node(), plan="quick"))
    calls: list[int] = []

    def also(status: dict[str, Any], results: tuple[Result, ...]) -> tuple[Result, ...]:
        calls.append(len(status["devices"]))
        return (burn_in("GPU-late"),)

    asked: list[dict[str, Any]] = []
    path = tmp_path / "agent.socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        answers: list[dict[str, Any]] = [{"devices": [1, 2]}, {}, document]
        threading.Thread(target=serve, args=(listener, answers, asked), daemon=True).start()
        delivery = Delivery(path, "quick", print, patience_seconds=4.0, also=also)
        with Session(path) as session:
            assert delivery.ended((burn_in("GPU-0"),), session) is not None
    assert [request["verb"] for request in asked] == ["status", "result", "result"]
    assert calls == [2]
    delivered = [[result["devices"] for result in request["results"]] for request in asked[1:]]
    assert delivered == [[["GPU-0"], ["GPU-late"]]] * 2


def begin(node: GpuNode, how: str, *, named: bool) -> subprocess.Popen[str]:
    """Begin a load of one format of all devices of *node*, or of the first seven by name."""
    words = ["--state-dir", str(node.state_dir), "--runtime-dir", str(node.runtime_dir)]
    words += ["--config", str(node.configuration_file)]
    words += [f"--device={node.machine.uuid(slot)}" for slot in range(7) if named]
    command = [sys.executable, str(PROGRAM), json.dumps({"fp32": how}), "--json", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=node.variables)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("has_agent", [True, False])
def test_a_board_that_comes_while_others_are_loaded_is_told(
    tmp_path: Path, fake_nvml_library: Path, has_agent: bool, named: bool
) -> None:
    """With an agent and without one, on every surface; whoever named the devices asked for no others."""
    node, go = GpuNode(tmp_path, fake_nvml_library), tmp_path / "go"
    started = tmp_path / "started"
    node.machine.set("count", 7)
    if has_agent:
        node.start()
    burning = begin(node, f"touch:{started}:until:{go}:finish", named=named)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len([*tmp_path.glob("started-*")]) < 7 and burning.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        node.machine.set("count", 8)
        if has_agent:
            node.wait_for(
                lambda status: len(status["devices"]) > 10 and status["verdict"] == "ok", PATIENCE_SECONDS, "no board"
            )
        go.touch()
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
        complete = node.metric("nodevet_burnin_complete") if has_agent else None
    finally:
        burning.kill()
        burning.communicate(timeout=PATIENCE_SECONDS)
        if has_agent:
            node.stop()
    document = json.loads(printed)
    unproven = [entry["device"] for entry in document["completeness"]["accounts"] if entry["standing"] == "unproven"]
    if named:
        assert (burning.returncode, document["verdict"], unproven, complete or 1.0) == (0, "ok", [], 1.0), said
        return
    assert (burning.returncode, document["verdict"], unproven) == (3, "unknown", [node.machine.uuid(7)]), said
    assert not complete
    assert "listed only after the load began" in node.command("history").stdout
