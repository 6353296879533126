"""The calls of torch that multiply: tried once on a small product, in the order of a table, until one works.

Releases and builds differ in what they offer, and refuse by raising. The first call that works is the one that is
loaded and certified. An error of the device or of its driver is no refusal: it ends the attempt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import msgspec

from .call_table import OperandLayout, TorchCall, calls_of
from .errors import RefusedError, UntoldFormatError
from .families import DataType
from .library import OutOfMemoryError, Tensor, torch

Multiply = Callable[[Tensor, Tensor, Tensor], None]
"""Computes A (M, K) times B (K, N) into the third tensor (M, N)."""

_TRIAL = (256, 128, 512)
"""(M, N, K) of the product that is tried: every library takes such sides, and all three differ."""

_NOT_OFFERED = ("BLAS_STATUS_NOT_SUPPORTED", "BLAS_STATUS_ARCH_MISMATCH", "BLAS_STATUS_INVALID_VALUE")
"""Answers of a BLAS library to a product that it does not offer; any other one is an error of the device."""

_OF_DEVICE = ("CUDA error", "HIP error", "BLAS_STATUS_", "out of memory")

_NO_KERNELS = "no kernel image is available"
_ANOTHER_BUILD = "install a build for its architecture (builds for CUDA 12.8 and later leave out Volta and older)"

_NAMES_ON_ROCM = {"cublas": "rocblas", "cublaslt": "hipblaslt"}
"""torch names the libraries of ROCm by their counterparts."""


class Chosen(msgspec.Struct, frozen=True):
    """The call that works, the BLAS library behind it (None where unknown), and why the calls before it did not."""

    row: TorchCall
    run: Multiply
    blas: str | None = None
    refused: dict[str, str] = {}

    def facts(self) -> dict[str, object]:
        """Return the conditions of a result that name the call."""
        return {
            "call": self.row.call,
            "layout": self.row.layout.value,
            "blas": self.blas,
            "calls_refused": self.refused,
        }


class Library:
    """The products of torch; a test puts those of another release in their place."""

    def device(self, kind: str) -> torch.device:
        """Return the device on which a call is tried."""
        return torch.device("cpu") if kind == "cpu" else torch.device("cuda", 0)

    def preferred_blas(self) -> str | None:
        """Return the name of the BLAS library that torch prefers, or None where it does not say."""
        ask = getattr(torch.backends.cuda, "preferred_blas_library", None)
        return None if ask is None else str(ask()).rpartition(".")[2].lower()

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply into a result of the operands' type."""
        torch.mm(a, b, out=out)

    def mm_to(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply into a wider result."""
        torch.ops.aten.mm.dtype_out(a, b, out.dtype, out=out)

    def int_mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply int8 into int32."""
        torch.ops.aten._int_mm.out(a, b, out=out)

    def scaled_mm(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        """Multiply fp8, scale the sum. Fast accumulation would keep sums in the unit's 14 bits for the whole K."""
        torch.ops.aten._scaled_mm.out(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=False, out=out)

    def scaled_mm_of_2_4(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        """Multiply fp8 by the signature of torch 2.4, which also returns the largest magnitude."""
        torch.ops.aten._scaled_mm.out(
            a,
            b,
            out_dtype=out.dtype,
            scale_a=scale_a,
            scale_b=scale_b,
            use_fast_accum=False,
            out=out,
            out_amax=_cell(0.0, a.device),
        )


def choose_call(
    data_type: DataType, kind: str, result_of: Callable[[TorchCall], torch.dtype], library: Library
) -> Chosen:
    """Return the first call for *data_type* on *kind* that works on a small product.

    *result_of* returns the type of the result of a call. Raises UntoldFormatError where no call works: the device has
    the format, so that skipping it is not excused; RefusedError where torch was not built for the device. Errors of the
    device are raised as they are.
    """
    refused: dict[str, str] = {}
    for row in calls_of(data_type.name, kind):
        run = _bound(row.call, data_type, library)
        try:
            _try(run, row, data_type, result_of(row), library.device(kind))
        except (RuntimeError, TypeError, AttributeError) as error:
            if _NO_KERNELS in str(error):
                raise RefusedError(
                    f"torch {torch.__version__} has no kernels for this device: {_ANOTHER_BUILD}"
                ) from error
            if is_device_error(error):
                raise
            refused[f"{row.call} {row.layout.value}"] = _first_line(error)
        else:
            return Chosen(row, run, _blas(row, kind, library), refused)
    told = "; ".join(f"{call}: {why}" for call, why in refused.items())
    raise UntoldFormatError(
        f"{data_type.name} on {kind}: torch {torch.__version__} multiplies it by no call ({told}); install another one"
    )


def is_device_error(error: BaseException) -> bool:
    """Return whether *error* is one of the device, its driver or its memory, not a call that torch does not offer."""
    text = str(error)
    if any(answer in text for answer in _NOT_OFFERED):
        return False
    accelerator = getattr(torch, "AcceleratorError", ())  # since torch 2.8
    return isinstance(error, (accelerator, OutOfMemoryError)) or any(word in text for word in _OF_DEVICE)


def _bound(call: str, data_type: DataType, library: Library) -> Multiply:
    match call:
        case "mm.out":
            return library.mm
        case "mm.dtype_out":
            return library.mm_to
        case "_int_mm.out":
            return library.int_mm
        case "_scaled_mm.out":
            return partial(_scaled, data_type, library.scaled_mm)
        case "_scaled_mm.out_amax":
            return partial(_scaled, data_type, library.scaled_mm_of_2_4)
    raise ValueError(f"torch_calls.csv: {call!r} is no known call")


def _try(run: Multiply, row: TorchCall, data_type: DataType, result: torch.dtype, device: torch.device) -> None:
    """Multiply zeros, and wait for the device: some calls are refused only when they run."""
    m, n, k = _TRIAL
    element: torch.dtype = getattr(torch, data_type.torch_name)
    a = torch.zeros(m, k, dtype=element, device=device)
    b = torch.zeros(n, k, dtype=element, device=device).t()
    out = torch.zeros(m, n, dtype=result, device=device)
    run(a, b if row.layout is OperandLayout.COLUMNS else b.contiguous(), out)
    float(out[0, 0])


def _scaled(
    data_type: DataType,
    product: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None],
    a: Tensor,
    b: Tensor,
    out: Tensor,
) -> None:
    factor = data_type.output_factor(a.shape[1]) * 2.0**data_type.output_exponent
    product(a, b, _cell(factor, a.device), _cell(1.0, a.device), out)


@functools.lru_cache(maxsize=8)
def _cell(value: float, device: torch.device) -> Tensor:
    """Return *value* on the device, created once: a product must not allocate."""
    return torch.full((), value, device=device)


def _blas(row: TorchCall, kind: str, library: Library) -> str | None:
    """Return the BLAS library behind a call; a processor has only the one that torch was built with."""
    if kind == "cpu":
        return None
    name = "cublaslt" if row.library == "lt" else library.preferred_blas()
    return _NAMES_ON_ROCM.get(name or "", name) if kind == "rocm" else name


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
