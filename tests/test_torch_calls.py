"""Which call of torch multiplies: each release offers some, and refuses others by raising."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from fakes.torch_release import NO_TORCH, NOT_SUPPORTED, Release  # skips this file where torch is not installed

from nodevet.checks.burnin.call_table import OperandLayout, TorchCall, calls_of
from nodevet.checks.burnin.calls import is_device_error
from nodevet.checks.burnin.errors import FormatError, RefusedError, UntoldFormatError
from nodevet.checks.burnin.families import data_types
from nodevet.checks.burnin.library import OutOfMemoryError, torch
from nodevet.checks.burnin.multiply import Multiplication, choose_multiplication
from nodevet.checks.burnin.plan import GemmRequest, load_plans, requests_for
from nodevet.checks.burnin.units import FormatUnits, known_formats
from nodevet.checks.burnin.workload import Run, run_gemm
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Result, ResultState
from nodevet.checks.engine.completeness import Planned, Standing, account
from nodevet.checks.reference.tables import load_table

SHAPE = (256, 256, 512)


class Quiet:
    """Lets the workload go on."""

    def known(self, result: Result) -> None:
        """Take what was told of a wrong result."""

    def pause(self) -> None:
        """Go on."""

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Show nothing."""


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    """A workload binds this process to a socket; all processors are given back."""
    assert NO_TORCH
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("name", "kind", "architecture", "release", "call", "layout", "narrow", "refused"),
    [
        ("bf16", "cuda", "sm90", Release((2, 8)), "mm.dtype_out", "NN", False, []),
        ("bf16", "cuda", "sm90", Release((2, 7)), "mm.out", "NN", True, ["mm.dtype_out NN"]),
        ("fp16", "cuda", "sm70", Release((2, 7)), "mm.out", "NN", True, ["mm.dtype_out NN"]),
        ("fp16", "cuda", "sm75", Release((2, 8)), "mm.dtype_out", "NN", False, []),
        ("bf16", "rocm", "gfx942", Release((2, 8), rocm=True), "mm.out", "NN", True, ["mm.dtype_out NN"]),
        ("bf16", "rocm", "gfx942", Release((2, 9), rocm=True), "mm.out", "NN", True, ["mm.dtype_out NN"]),
        ("fp16", "rocm", "gfx90a", Release((2, 10), rocm=True), "mm.dtype_out", "NN", False, []),
        ("tf32", "cuda", "sm80", Release((2, 4)), "mm.out", "NN", False, []),
        ("fp64", "rocm", "gfx942", Release((2, 4), rocm=True), "mm.out", "NN", False, []),
        ("int8", "cuda", "sm80", Release((2, 4)), "_int_mm.out", "TN", False, []),
        ("int8", "rocm", "gfx908", Release((2, 6), needs_rows=True), "_int_mm.out", "NN", False, ["_int_mm.out TN"]),
        ("fp8_e4m3", "cuda", "sm89", Release((2, 5)), "_scaled_mm.out", "TN", False, []),
        ("fp8_e4m3", "cuda", "sm90", Release((2, 4)), "_scaled_mm.out_amax", "TN", False, ["_scaled_mm.out TN"]),
        ("fp8_e4m3", "rocm", "gfx950", Release((2, 9), rocm=True), "_scaled_mm.out", "TN", False, []),
    ],
)
def test_the_first_call_that_the_release_has_is_taken(
    name: str, kind: str, architecture: str, release: Release, call: str, layout: str, narrow: bool, refused: list[str]
) -> None:
    """Each release that lacks a call, or refuses it, falls back to the next one, and the reason is kept."""
    multiplication = choose_multiplication(name, kind, architecture, release)
    chosen = multiplication.chosen
    assert (chosen.row.call, chosen.row.layout, multiplication.narrow) == (call, layout, narrow)
    assert list(chosen.refused) == refused
    assert all(chosen.refused.values())
    assert multiplication.transpose_b is (layout == OperandLayout.COLUMNS)
    assert multiplication.output is (multiplication.element if narrow else multiplication.wide)


@pytest.mark.parametrize(
    ("name", "kind", "release"),
    [
        ("fp8_e4m3", "cuda", Release((2, 4))),
        ("fp8_e4m3", "cuda", Release((2, 13))),
        ("int8", "cuda", Release((2, 13))),
        ("int8", "cuda", Release((2, 6), needs_rows=True)),
        ("fp16", "cuda", Release((2, 7))),
        ("fp16", "cuda", Release((2, 13), needs_flags=True)),
        ("bf16", "rocm", Release((2, 8), rocm=True)),
        ("bf16", "rocm", Release((2, 10), rocm=True)),
        ("tf32", "cuda", Release((2, 13))),
    ],
)
def test_a_load_by_each_call_is_verified_and_tells_the_call(name: str, kind: str, release: Release) -> None:
    """The whole workload with the layout and the result of that call: operands, certificate, self-test, ring."""
    architecture = {"cuda": "sm90", "rocm": "gfx950"}[kind]

    def choose(dtype: str, _kind: str, _architecture: str | None) -> Multiplication:
        return choose_multiplication(dtype, kind, architecture, release)

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True  # as torch starts
    request = GemmRequest(device="cpu-0", dtype=name, seconds=0.05, shape=SHAPE, maximum_memory_bytes=64 << 20)
    result = run_gemm(Run(request, SystemClock()), Quiet(), choose)
    assert (result.state, result.conditions["verification"]) == (ResultState.FINISHED, "verified"), result.detail
    chosen = choose_multiplication(name, kind, architecture, release).chosen
    assert result.conditions["call"] == chosen.row.call
    assert result.conditions["layout"] == chosen.row.layout
    assert result.conditions["calls_refused"] == chosen.refused
    assert result.metric("gemms_verified")


@pytest.mark.parametrize(
    ("name", "kind", "blas", "told"),
    [
        ("bf16", "cuda", "_BlasBackend.Cublas", "cublas"),
        ("bf16", "cuda", "_BlasBackend.Cublaslt", "cublaslt"),
        ("bf16", "rocm", "_BlasBackend.Cublas", "rocblas"),
        ("bf16", "rocm", "_BlasBackend.Cublaslt", "hipblaslt"),
        ("bf16", "rocm", "_BlasBackend.Ck", "ck"),
        ("int8", "cuda", "_BlasBackend.Cublas", "cublaslt"),
        ("int8", "rocm", "_BlasBackend.Cublas", "hipblaslt"),
        ("bf16", "cuda", "", None),
    ],
)
def test_the_blas_library_is_told_by_its_own_name(name: str, kind: str, blas: str, told: str | None) -> None:
    """torch names the libraries of ROCm by those of CUDA, and has no choice for int8."""
    release = Release((2, 10), blas=blas)
    chosen = choose_multiplication(name, kind, {"cuda": "sm90", "rocm": "gfx942"}[kind], release).chosen
    assert chosen.blas == told


@pytest.mark.parametrize(
    ("text", "is_of_device"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("HIP error: unspecified launch failure", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", True),
        ("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasLtMatmul`", True),
        (NOT_SUPPORTED, False),
        ("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmul`", False),
        ("CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx`", False),
        ("mat2 must be col_major", False),
    ],
)
def test_an_error_of_the_device_is_no_refusal_of_a_call(text: str, is_of_device: bool) -> None:
    """A device that fails in the first product would else be told as a release that lacks the product."""
    assert is_device_error(RuntimeError(text)) is is_of_device
    release = Release((2, 13), broken=text)
    if not is_of_device:
        with pytest.raises(UntoldFormatError, match="multiplies it by no call"):
            choose_multiplication("bf16", "cuda", "sm90", release)
        return
    with pytest.raises(RuntimeError, match="error"):
        choose_multiplication("bf16", "cuda", "sm90", release)
    assert len(release.ran) == 1


def test_memory_that_runs_out_is_no_refusal_of_a_call() -> None:
    """It is told as such, with the way out; torch 2.4 has its error in another place."""
    assert OutOfMemoryError is torch.cuda.OutOfMemoryError
    assert is_device_error(OutOfMemoryError("Tried to allocate 2 MiB"))
    assert not is_device_error(AttributeError("'mm' has no overload 'dtype_out'"))


def test_a_build_without_kernels_for_the_device_is_refused_with_the_way_out() -> None:
    """V100 with a build for CUDA 12.8: no fault of the device, and no format of it can be loaded."""
    text = "CUDA error: no kernel image is available for execution on the device"
    with pytest.raises(RefusedError, match="no kernels for this device: install a build") as raised:
        choose_multiplication("fp16", "cuda", "sm70", Release((2, 8), broken=text))
    assert not isinstance(raised.value, FormatError)


def test_a_format_that_no_call_multiplies_is_not_excused() -> None:
    """The device has it, so that a load without it is not complete."""

    def choose(dtype: str, _kind: str, _architecture: str | None) -> Multiplication:
        return choose_multiplication(dtype, "cuda", "sm90", Release((2, 5), broken="not compiled"))

    request = GemmRequest(device="cpu-0", dtype="int8", seconds=0.05, shape=SHAPE)
    result = run_gemm(Run(request, SystemClock()), Quiet(), choose)
    assert (result.state, result.conditions["refusal"]) == (ResultState.REFUSED, "untold")
    assert "_int_mm.out TN: not compiled; _int_mm.out NN: not compiled" in result.detail
    assert account((), (result,)).accounts[0].standing is Standing.UNPROVEN


@pytest.mark.parametrize(
    ("name", "kind", "architecture", "why"),
    [
        ("fp8_e5m2", "cuda", "sm90", "no GPU has shown yet"),
        ("fp4_e2m1", "cuda", "sm100", "no GPU has shown yet"),
        ("fp8_e4m3", "rocm", "gfx942", "fnuz variant.*no such GPU has shown yet"),
    ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_a_format_that_no_gpu_has_shown_exact_is_refused(
    name: str, kind: str, architecture: str, why: str, asked: bool
) -> None:
    """It is listed with its reason, and spoils nothing unless somebody asked for it."""

    def choose(dtype: str, _kind: str, _architecture: str | None) -> Multiplication:
        return choose_multiplication(dtype, kind, architecture, Release((2, 13)))

    with pytest.raises(FormatError, match=why):
        choose(name, kind, architecture)
    request = GemmRequest(device="cpu-0", dtype=name, seconds=0.05, shape=SHAPE, asked=asked)
    result = run_gemm(Run(request, SystemClock()), Quiet(), choose)
    (entry,) = account((Planned("cpu-0", name, asked),), (result,)).accounts
    assert entry.standing is (Standing.UNPROVEN if asked else Standing.LACKING)
    assert requests_for("quick", "GPU-1", kind, dtypes=(name,))[0].dtype == name


@pytest.mark.parametrize("plan", list(load_plans()))
@pytest.mark.parametrize(("architecture", "there"), [("sm70", {"fp16"}), ("sm75", {"fp16", "int8"})])
def test_v100_and_t4_get_fp16(plan: str, architecture: str, there: set[str]) -> None:
    """Neither has bf16; a plan without fp16 would load nothing on V100."""
    offered = set()
    for request in requests_for(plan, "GPU-1", "cuda"):
        try:
            choose_multiplication(request.dtype, "cuda", architecture, Release((2, 7)))
        except UntoldFormatError:
            raise
        except FormatError:
            continue
        offered.add(request.dtype)
    assert offered - {"fp32", "fp64"} == there & {request.dtype for request in requests_for(plan, "GPU-1", "cuda")}
    assert "fp16" in offered


def test_each_format_has_its_rows_and_each_call_its_format() -> None:
    """A format without a call or without units could never run; an unknown name is refused by all of them."""
    for name in data_types():
        assert name in known_formats()
        for kind in ("cuda", "rocm"):
            assert calls_of(name, kind), (name, kind)
    calls: tuple[TorchCall, ...] = load_table("torch_calls.csv", TorchCall)
    units: tuple[FormatUnits, ...] = load_table("format_units.csv", FormatUnits)
    assert {name for row in calls for name in row.formats} == set(data_types())
    for evidence, source in [(row.evidence, row.source) for row in calls] + [
        (row.evidence, row.source) for row in units
    ]:
        assert source and evidence in ("read", "recalled", "measured")
    assert all(row.result in ("wide", "narrow") and row.library in ("lt", "preferred") for row in calls)
    with pytest.raises(UsageError, match="unknown number format 'fp5'; formats: bf16, "):
        requests_for("quick", "GPU-1", "cuda", dtypes=("fp5",))
