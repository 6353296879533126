"""Settings under which a matrix product stays exact: asserted before the first product, stored with the result.

Reduced-precision reductions are on by default in torch for fp16 and bf16; environment variables can turn
fp32 products into tf32 ones behind torch's back, or emulate them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import RefusedError
from .library import torch

_FORBIDDEN = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_FORBIDDEN_PREFIX = "CUBLAS_EMULATE_"
_RELEVANT_PREFIXES = (
    "CUBLAS",
    "HIPBLAS",
    "ROCBLAS",
    "TORCH_",
    "PYTORCH_",
    "NVIDIA_TF32",
    "OMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
)


def forbidden_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of set variables that change the arithmetic of products."""
    return sorted(name for name in environment if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIX))


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the set variables that affect the libraries of a product, to be stored with its result."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(_RELEVANT_PREFIXES)}


def require_clean_environment(environment: Mapping[str, str]) -> None:
    """Raise RefusedError naming the variables that change the arithmetic of products."""
    names = forbidden_variables(environment)
    if names:
        named = ", ".join(names)
        raise RefusedError(f"the environment changes the arithmetic of products; unset {named} and run again")


def apply_flags(data_type: str) -> dict[str, str]:
    """Set every flag that could round a product, and return name and value as read back.

    Raises RefusedError where a flag does not take the value: the result could not be trusted.
    """
    matmul = torch.backends.cuda.matmul
    # Since torch 2.10 or so, the pair also forbids the split-K twins of the reductions; older ones take one value.
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        has_twin = hasattr(matmul, f"{name}_split_k")
        setattr(matmul, name, (False, False) if has_twin else False)
    if hasattr(matmul, "allow_fp16_accumulation"):
        matmul.allow_fp16_accumulation = False
    wanted = _set_fp32_precision(tf32=data_type == "tf32")
    wanted |= {
        f"cuda.matmul.{name}": "False"
        for name in (
            "allow_fp16_reduced_precision_reduction",
            "allow_fp16_reduced_precision_reduction_split_k",
            "allow_bf16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction_split_k",
            "allow_fp16_accumulation",
        )
        if hasattr(matmul, name)
    }
    actual = {name: _read(name) for name in wanted}
    wrong = [f"{name} is {actual[name]}, not {value}" for name, value in wanted.items() if actual[name] != value]
    if wrong:
        raise RefusedError(f"torch {torch.__version__} does not keep its products exact: {'; '.join(wrong)}")
    return actual


def _set_fp32_precision(*, tf32: bool) -> dict[str, str]:
    """Request full fp32 products (or tf32 ones) by the interface of this torch; return the values to read back."""
    cuda = torch.backends.cuda.matmul
    if not hasattr(cuda, "fp32_precision"):
        torch.set_float32_matmul_precision("highest")
        cuda.allow_tf32 = tf32
        return {"cuda.matmul.allow_tf32": str(tf32)}
    cuda.fp32_precision = "tf32" if tf32 else "ieee"
    wanted = {"cuda.matmul.fp32_precision": "tf32" if tf32 else "ieee"}
    mkldnn = getattr(torch.backends.mkldnn, "matmul", None)
    if mkldnn is not None:
        mkldnn.fp32_precision = "ieee"
        wanted["mkldnn.matmul.fp32_precision"] = "ieee"
    return wanted


def _read(dotted: str) -> str:
    value: object = torch.backends
    for name in dotted.split("."):
        value = getattr(value, name)
    return str(value)
