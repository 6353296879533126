"""The archive of a first light: all that was measured, and nothing that names the machine."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.needs_torch import NO_TORCH  # skips this file where torch is not installed
from fakes.snapshots import gpu_id, gpu_node
from test_burn_in_output import HOST_ONLY

from nodevet.agent.cli import main
from nodevet.agent.load.first_light import PLAN, packed
from nodevet.checks.burnin.plan import requests_for
from nodevet.checks.core.model import Reading, Snapshot
from nodevet.exporters.documents.schema import burn_in_document


def opened(content: bytes) -> dict[str, Any]:
    """Return the documents of an archive by name."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name.removeprefix("first-light/"): file.read().decode() for name, file in files.items() if file}


def named_node() -> Snapshot:
    """Return a node with names in every place where a text can be."""
    node = gpu_node()
    device = next(each for each in node.devices if each.id == gpu_id(0))
    result = msgspec.structs.replace(
        node.results[0],
        devices=(device.id,),
        detail=f"another device is visible: {device.id}",
        conditions={
            "load": "boot:1",
            "torch": "2.13.0",
            "call": "mm.dtype_out",
            "visible_uuid": (device.uuid or device.id).removeprefix("GPU-"),
            "environment_removed": {"PYTORCH_TUNABLEOP_FILENAME": "/home/person/results.csv"},
            "mismatch_reports": [{"origin": f"of {device.serial} on {node.node}"}],
        },
    )
    sample = next(each for each in node.samples if each.device == device.id)
    reading = Reading("compute_process_ids", "17,42,77")
    samples = (msgspec.structs.replace(sample, readings=(*sample.readings, reading)),)
    return msgspec.structs.replace(node, results=(result,), samples=samples)


def test_nothing_in_the_archive_names_the_machine() -> None:
    """Host, UUIDs, serial numbers, boot and paths stay; figures, calls and readings are there."""
    node = named_node()
    files = opened(packed(burn_in_document(node, plan=PLAN), (node,)))
    text = "\n".join(files.values())
    device = next(each for each in node.devices if each.id == gpu_id(0))
    for name in (node.node, device.id, device.uuid, device.serial, gpu_id(0).removeprefix("GPU-"), "/home", "boot:1"):
        assert name and name not in text, name
    (result, *_) = json.loads(files["results.json"])
    assert result["detail"].startswith("another device is visible: device-")
    assert result["conditions"]["call"] == "mm.dtype_out"
    assert result["conditions"]["environment_removed"] == ["PYTORCH_TUNABLEOP_FILENAME"]
    (sample,) = json.loads(files["samples.json"])
    assert sample["device"] == result["device"]
    assert sample["readings"][-1]["value"] == "text of 8 characters"
    assert any(isinstance(reading["value"], (int, float)) for reading in sample["readings"])
    assert json.loads(files["software.json"])["torch"] == ["2.13.0"]
    assert len(json.loads(files["devices.json"])) == len(node.devices)


def test_a_first_light_runs_here_with_the_same_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A processor in place of a GPU: one command, one archive with certificates, cost and samples."""
    assert NO_TORCH
    places = []
    for name in ("state-dir", "runtime-dir"):
        (tmp_path / name).mkdir(mode=0o700)
        places += [f"--{name}", str(tmp_path / name)]
    (tmp_path / "nodevet.toml").write_text(HOST_ONLY)
    archive = tmp_path / "first-light.tar.gz"
    words = ["--seconds", "0.1", "--dtype", "fp32", "--shape", "256,256,512", "--device", "cpu-0"]
    code = main(["burn-in", "--first-light", str(archive), *words, *places, "--config", str(tmp_path / "nodevet.toml")])
    assert code in (0, 3), capsys.readouterr()
    files = opened(archive.read_bytes())
    figures = {each["metric"]: each["value"] for each in json.loads(files["results.json"])}
    assert figures["operand_sets_certified"] == 5
    assert figures["checking_overhead_ratio"] is not None
    assert {each["group"] for each in json.loads(files["samples.json"])}
    conditions = json.loads(files["results.json"])[0]["conditions"]
    assert (conditions["plan"], conditions["call"]) == (PLAN, "mm.out")
    capsys.readouterr()
    before = archive.read_bytes()
    assert main(["burn-in", "--first-light", str(archive), *words, *places]) not in (0, 1, 2, 3)
    assert "name a new file" in capsys.readouterr().err
    assert archive.read_bytes() == before


def test_a_first_light_that_never_ran_leaves_no_archive(tmp_path: Path) -> None:
    """An empty file would be sent."""
    (tmp_path / "nodevet.toml").write_text(HOST_ONLY)
    for name in ("state", "run"):
        (tmp_path / name).mkdir(mode=0o700)
    archive = tmp_path / "first-light.tar.gz"
    places = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
    words = ["--device", "GPU-absent", "--config", str(tmp_path / "nodevet.toml")]
    assert main(["burn-in", "--first-light", str(archive), *words, *places]) != 0
    assert not archive.exists()


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_first_light_takes_at_most_half_an_hour(kind: str) -> None:
    """Load and warm-up of all formats, and as much again for two of three minutes of set-up each."""
    requests = requests_for(PLAN, "GPU-1", kind)
    assert sum(request.seconds + request.warmup_seconds for request in requests) + 120 * len(requests) <= 1800
    assert {request.dtype for request in requests} >= {"bf16", "fp16", "int8", "fp32", "fp64"}
