"""The environment of a load: the site's, without what a table names, and each result tells what that was."""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodevet.agent.load.run import LoadRun
from nodevet.checks.burnin.environment import Variable, require_clean_environment, split
from nodevet.checks.burnin.errors import RefusedError
from nodevet.checks.burnin.launch import Launch, burn_command
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Device, DeviceKind
from nodevet.checks.reference.tables import load_table

PROGRAM = Path(__file__).with_name("fakes") / "scripted_load.py"
BOARD = Device(id="GPU-1", uuid="GPU-1", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="any", backend="nvidia")

REMOVED = {
    "CUBLASLT_WORKSPACE_SIZE": "0",
    "CUBLAS_EMULATION_STRATEGY": "eager",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_LAUNCH_BLOCKING": "1",
    "GPU_DEVICE_ORDINAL": "2",
    "HIPBLASLT_LOG_LEVEL": "5",
    "KMP_AFFINITY": "compact",
    "NVIDIA_TF32_OVERRIDE": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_TUNABLEOP_ENABLED": "1",
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "0",
}
KEPT = {
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/opt/rocm/lib",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    "HSA_CU_MASK": "0:0-3",
    "HSA_OVERRIDE_GFX_VERSION": "9.0.0",
    "CUDA_CACHE_PATH": "/var/cache",
}


def test_a_load_gets_the_environment_without_what_the_table_names() -> None:
    """Precision, kernels, tuning and the choice of devices are the load's; paths and shares are the site's."""
    assert split(KEPT | REMOVED) == (KEPT, REMOVED)
    launch = burn_command(BOARD, KEPT | REMOVED)
    assert launch.environment == KEPT | {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert launch.removed == REMOVED


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "CUBLAS_EMULATE_DOUBLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
        "ROCBLAS_INTERNAL_FP16_ALT_IMPL",
        "ONEDNN_DEFAULT_FPMATH_MODE",
    ],
)
def test_a_load_that_has_a_variable_that_rounds_products_is_refused(name: str) -> None:
    """However it came there: the child looks again."""
    with pytest.raises(RefusedError, match=f"changes the arithmetic of products; unset {name} and"):
        require_clean_environment(KEPT | {name: "1"})
    require_clean_environment(split(KEPT | {name: "1"})[0])


def test_what_was_removed_stands_in_each_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of the site run with it, so that their rate and precision may be others."""
    script = {"fp32": "finish", "bf16": "finish"}

    def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
        kept, removed = split(environment)
        return Launch((sys.executable, "-I", str(PROGRAM), json.dumps(script)), kept, removed)

    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    requests = {BOARD.id: tuple(GemmRequest(device=BOARD.id, dtype=dtype, seconds=0.1) for dtype in script)}
    with selectors.DefaultSelector() as selector:
        load = LoadRun((BOARD,), requests, SystemClock(), selector, among=(), spawn=spawn)
        deadline = time.monotonic() + 20
        while not load.done and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            load.tick()
    assert [result.conditions["environment_removed"]["PYTORCH_TUNABLEOP_ENABLED"] for result in load.results] == [
        "1"
    ] * 2


def test_each_row_of_the_table_decides_something() -> None:
    """A row behind a wider one would never be used."""
    rows: tuple[Variable, ...] = load_table("load_environment.csv", Variable)
    for row in rows:
        name = row.variable.replace("*", "ANY")
        assert (name in split({name: "1"})[0]) is row.kept, row.variable
        assert row.why and row.source
        assert not (row.kept and row.changes_arithmetic)
