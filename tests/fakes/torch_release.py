"""The products of a release of torch on a GPU, which raise where it does. Computed exactly, on a processor."""

from __future__ import annotations

from fakes.needs_torch import NO_TORCH

from nodevet.checks.burnin.calls import Library
from nodevet.checks.burnin.library import Tensor, torch

__all__ = ["NO_TORCH", "Release"]

NOT_SUPPORTED = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`"


class Release(Library):
    """A build of torch *version* for CUDA, or for *rocm*.

    *needs_rows*: its BLAS library takes an int8 B by rows alone. *needs_flags*: it has no fp32 result while sums may be
    rounded. *broken*: what every product raises. *blas*: the
    preferred library as torch prints it, empty in a release that does not say.
    """

    def __init__(
        self,
        version: tuple[int, int],
        *,
        rocm: bool = False,
        needs_rows: bool = False,
        needs_flags: bool = False,
        broken: str = "",
        blas: str = "_BlasBackend.Cublas",
    ) -> None:
        """Describe the build."""
        self._version = version
        self._rocm = rocm
        self._needs_rows = needs_rows
        self._needs_flags = needs_flags
        self._broken = broken
        self._name = blas
        self.ran: list[str] = []
        self.operations = 0

    def device(self, kind: str) -> torch.device:
        """Return the processor, which stands in for the GPU."""
        assert kind in ("cuda", "rocm")
        return torch.device("cpu")

    def preferred_blas(self) -> str | None:
        """Return the last word of the name."""
        return self._name.rpartition(".")[2].lower() or None

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply, and round where the result is narrow."""
        self._run("mm", a, b)
        exact = a if a.dtype.itemsize > 4 else a.float()
        out.copy_(torch.mm(exact, b.to(exact.dtype)))

    def mm_to(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Since 2.8; ROCm builds refused it until 2.10."""
        self._run("mm_to", a, b)
        if self._version < (2, 8):
            raise AttributeError("The underlying op of 'aten.mm' has no overload name 'dtype_out'")
        if self._rocm and self._version < (2, 10):
            raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")
        if self._needs_flags and torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction:
            raise RuntimeError("fp32 output is not allowed together with allow_fp16_reduced_precision_reduction")
        out.copy_(torch.mm(a.float(), b.float()))

    def int_mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Refuse what a library does not take."""
        self._run("int_mm", a, b)
        if a.shape[0] <= 16:
            raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {a.shape[0]}")
        if self._needs_rows and not b.is_contiguous():
            raise RuntimeError(NOT_SUPPORTED)
        out.copy_(torch.mm(a.double(), b.double()))

    def scaled_mm(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        """Since 2.5 with this signature."""
        self._run("scaled_mm", a, b)
        if self._version < (2, 5):
            raise RuntimeError("aten::_scaled_mm() takes 2 positional argument(s) but 4 was/were given")
        self._scale(a, b, scale_a, scale_b, out)

    def scaled_mm_of_2_4(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        """In 2.4 alone."""
        self._run("scaled_mm_of_2_4", a, b)
        if self._version >= (2, 5):
            raise RuntimeError("aten::_scaled_mm() got an unexpected keyword argument 'out_amax'")
        self._scale(a, b, scale_a, scale_b, out)

    def _scale(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        if b.stride(0) != 1:
            raise RuntimeError("mat2 must be col_major")
        if any(side % 16 for side in (*a.shape, *b.shape)):
            raise RuntimeError("Expected trailing dimension of mat1 to be divisible by 16")
        out.copy_(torch.mm(a.double(), b.double()) * scale_a * scale_b)

    def _run(self, name: str, a: Tensor, b: Tensor) -> None:
        self.ran.append(name)
        self.operations += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        if self._broken:
            raise RuntimeError(self._broken)
