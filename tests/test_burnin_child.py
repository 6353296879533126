"""The load child over a real socket: results, refusals, and an end within two seconds whatever it is doing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from fakes.burnin import NO_TORCH  # skips this file where torch is not installed
from fakes.ended import ended
from fakes.load_child import DEVICE, PATIENCE_SECONDS, WITHOUT_TORCH, LoadChild

from nodevet.checks.burnin.launch import burn_command, compute_kind
from nodevet.checks.burnin.metrics import UNITS
from nodevet.checks.burnin.plan import requests_for
from nodevet.checks.core.model import DeviceKind, ResultState
from nodevet.checks.core.wire import Burn, Ready, Start, Stop

END_SECONDS = 2.0


def test_child_works_refuses_and_works_again() -> None:
    """One child serves several requests: a verified result, a refusal that names the field, and the next result."""
    with LoadChild() as child:
        child.send(Start("burnin"))
        assert child.receive() == Ready(devices=())
        child.burn()
        result = child.result()
        assert (result.state, result.devices) == (ResultState.FINISHED, ("cpu-0",))
        # The child got one processor: where the machine has more of them, that proves only a part of its socket.
        assert result.detail.startswith("in part: ") is (len(os.sched_getaffinity(1)) > 1)
        assert (result.dtype, result.shape, result.pattern) == ("fp32", (256, 256, 512), "exact_integers")
        assert result.conditions["verification"] == "verified"
        assert {metric.name: metric.unit for metric in result.metrics} == UNITS
        assert result.metric("gemms_verified") == result.metric("gemms_run") != 0
        assert (result.metric("mismatches"), result.metric("verified_fraction")) == (0, 1.0)
        assert result.metric("self_test_found") == result.metric("self_test_planted") == 10
        assert result.metric("peak_tflops") is None
        assert result.conditions["flags"]["cuda.matmul.allow_bf16_reduced_precision_reduction"] == "False"
        ratios = [tick.ratio for tick in child.ticks]
        assert ratios == sorted(ratios)
        assert [phase for phase, _ in itertools.groupby(tick.phase for tick in child.ticks)] == [
            "loading torch", "preparing", "certifying", "self-test", "measuring the cost of checking", "measuring",
        ]  # fmt: skip

        child.burn(shape=[100, 256, 512])
        refused = child.result()
        assert refused.state is ResultState.REFUSED
        assert "multiples of 128" in refused.detail
        child.send(Burn("sort", {"device": "cpu-0"}))
        assert "'sort' is unknown" in child.result().detail
        child.burn(dtype="fp16")
        refused = child.result()
        assert "hundreds of times slower" in refused.detail
        assert refused.conditions["refusal"] == "format"
        child.burn(device="cpu-77")
        assert "cpu-77: no processor" in child.result().detail
        child.burn(device="GPU-1234")
        refused = child.result()
        assert "sees no accelerator" in refused.detail
        assert refused.conditions["refusal"] == "device"

        child.burn(dtype="int8")
        assert child.result().state is ResultState.FINISHED
        assert child.children() == 0
        assert child.seconds_to_end(stop=True) < END_SECONDS
        assert child.process.returncode == 0
        assert child.stderr() == ""


def test_sigterm_ends_a_measurement_with_what_is_known() -> None:
    """SIGTERM in the middle gives a result in state interrupted and the end of the child within two seconds."""
    with LoadChild() as child:
        child.burn(seconds=4, self_test=False)
        child.wait_for_phase("measuring", figures=True)
        assert child.seconds_to_end(terminate=True) < END_SECONDS
        result = child.result()
        assert result.state is ResultState.INTERRUPTED
        assert result.metric("gemms_run") != 0
        assert child.process.returncode == 0


def test_sigterm_ends_a_child_that_does_not_come_back_to_python() -> None:
    """While torch is being loaded nothing can be asked for; the child still answers and ends in time."""
    with LoadChild() as child:
        child.send(Start("burnin"))
        assert isinstance(child.receive(), Ready)
        child.burn(seconds=20)
        child.wait_for_phase("loading torch")
        assert child.seconds_to_end(terminate=True) < END_SECONDS
        assert child.result().state is ResultState.INTERRUPTED


def test_idle_child_ends_on_sigterm() -> None:
    """A child without work ends at once, without a result."""
    with LoadChild() as child:
        child.send(Start("burnin"))
        assert isinstance(child.receive(), Ready)
        assert child.seconds_to_end(terminate=True) < END_SECONDS
        assert child.process.returncode == 0


def test_stop_interrupts_a_measurement() -> None:
    """The word to stop is heard between batches: the result says interrupted."""
    with LoadChild() as child:
        child.burn(seconds=20, self_test=False)
        child.wait_for_phase("measuring the cost of checking")
        child.send(Stop())
        assert child.result().state is ResultState.INTERRUPTED
        assert child.seconds_to_end() < END_SECONDS
        assert child.process.returncode == 0


def test_child_without_parent_ends() -> None:
    """When the lifeline is cut in the middle of a measurement, the child ends by itself."""
    with LoadChild() as child:
        child.burn(seconds=20, self_test=False)
        child.wait_for_phase("measuring the cost of checking")
        assert child.seconds_to_end(cut=True) < END_SECONDS


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from fakes.load_child import LoadChild
with LoadChild(sys.argv[2:]) as child:
    child.burn(seconds=600, self_test=False)
    child.wait_for_phase("measuring", figures=True)
    print(child.process.pid, flush=True)
    print(child.result().detail, flush=True)
    child.process.wait()
"""


def test_a_load_whose_parent_is_stopped_ends() -> None:
    """Ctrl-Z or SIGSTOP: a stopped command would not have it give way to a job."""
    argv = [sys.executable, "-c", "import sys; from nodevet.checks.burnin.main import main; main(sys.argv[1:])"]
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", PARENT, str(Path(__file__).parent), *argv], stdout=subprocess.PIPE, text=True
        )
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)
        has_ended = child.status() == psutil.STATUS_ZOMBIE
        if not has_ended:
            child.kill()
        parent.send_signal(signal.SIGCONT)
        said = parent.stdout.readline()
        parent.kill()
    assert has_ended
    assert "its parent was stopped" in said


def test_missing_torch_is_refused_in_one_line() -> None:
    """Without torch the load says how to get it, and nothing else breaks."""
    with LoadChild(WITHOUT_TORCH) as child:
        child.burn()
        result = child.result()
        assert result.state is ResultState.REFUSED
        assert result.detail == "torch is not installed: pip install 'nodevet[burnin]'"
        assert child.seconds_to_end(stop=True) < END_SECONDS
        assert child.stderr() == ""


def test_environment_that_changes_arithmetic_is_refused() -> None:
    """A variable that turns exact products into rounded ones is named, not silently worked around."""
    with LoadChild(environment={"NVIDIA_TF32_OVERRIDE": "1"}) as child:
        child.burn()
        result = child.result()
        assert result.state is ResultState.REFUSED
        assert (
            result.detail
            == "the environment changes the arithmetic of products; unset NVIDIA_TF32_OVERRIDE and run again"
        )


def test_progress_line_names_the_phase() -> None:
    """What hangs can be read from outside: the shared line tells the phase."""
    with LoadChild() as child:
        child.burn(seconds=20)
        child.wait_for_phase("certifying")
        assert child.progress.read() in ("certifying", "self-test", "measuring the cost of checking")


def test_command_chooses_the_device_by_uuid() -> None:
    """An accelerator is chosen by UUID before the child starts; a processor load sees no accelerator at all."""
    assert NO_TORCH
    uuid = "GPU-5c1c0b5e"
    environment = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "ROCR_VISIBLE_DEVICES": "3",
        "GPU_DEVICE_ORDINAL": "1",
    }
    expected = {
        "nvidia": {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": uuid},
        "amd": {"PATH": "/bin", "ROCR_VISIBLE_DEVICES": uuid},
    }
    for vendor, variables in expected.items():
        device = DEVICE.__class__(
            id=uuid, uuid=uuid, kind=DeviceKind.ACCELERATOR, vendor=vendor, model="any", backend=vendor
        )
        assert burn_command(device, environment).environment == variables
        narrow = {"OMP_THREAD_LIMIT": "1", "OMP_DYNAMIC": "true", "GOMP_CPU_AFFINITY": "0", "KMP_AFFINITY": "compact"}
        assert burn_command(device, environment | narrow).environment == variables
    hidden = burn_command(DEVICE, environment).environment
    assert hidden["CUDA_VISIBLE_DEVICES"] == hidden["HIP_VISIBLE_DEVICES"] == hidden["ROCR_VISIBLE_DEVICES"] == ""


def test_no_workload_for_what_does_not_compute() -> None:
    """A device that no workload exists for is told as such, not loaded by mistake."""
    nic = DEVICE.__class__(id="nic", kind=DeviceKind.NIC, vendor="nvidia", model="any", backend="host")
    assert compute_kind(nic) is None
    assert compute_kind(DEVICE) == "cpu"
    assert [request.dtype for request in requests_for("probe", "cpu-0", "cpu")] == ["fp32"]
