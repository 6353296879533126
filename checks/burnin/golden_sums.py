"""Writes checks/reference/golden_sums.csv: the sums of the probe's products, certified on this host.

Run: ``python -m nodevet.checks.burnin.golden_sums >checks/reference/golden_sums.csv``. The operands of a format that
this processor has not are multiplied in fp32, which holds their exact sums; certify proves each product.
"""

from __future__ import annotations

import sys

import msgspec

from .certify import certify
from .layout import EXTRA_ROWS
from .library import Tensor, torch
from .multiply import Multiplication, choose_multiplication
from .operands import build_sets, make_sets
from .plan import DEFAULT_SEED, load_plans
from .shipped import sums_digest

SOURCE = "computed by checks/burnin/golden_sums.py: exact integers, proved by certify on the host"


def _on_host(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def _rows(multiplication: Multiplication, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    name, narrow = multiplication.data_type.name, multiplication.narrow
    recipes = make_sets(multiplication.data_type, m, n, k, EXTRA_ROWS, DEFAULT_SEED, narrow=narrow)
    for each in build_sets(recipes, multiplication.element, torch.device("cpu")):
        certificate = certify(each, multiplication, m, DEFAULT_SEED)
        if certificate.golden is None:
            raise SystemExit(f"{name} {shape}: {certificate.reason}")
        output = str(multiplication.output).removeprefix("torch.")
        digest = sums_digest(certificate.golden)
        sys.stdout.write(f'{name},{output},{m},{n},{k},{DEFAULT_SEED},{each.index},{digest},"{SOURCE}"\n')


def main() -> None:
    """Print the table."""
    sys.stdout.write("dtype,output,m,n,k,seed,operand_set,digest,source\n")
    plan = load_plans()["probe"]
    for m, n, k in dict.fromkeys(plan.shapes.cpu.values()):
        _rows(choose_multiplication("fp32", "cpu"), (m, n, k))
    for dtype in dict.fromkeys((*plan.dtypes["cuda"], *plan.dtypes["rocm"])):
        real = choose_multiplication(dtype, "cuda", "sm90")
        wide = msgspec.structs.replace(real, run=_on_host, exact=_on_host, narrow=False, output=real.wide)

        def narrow(a: Tensor, b: Tensor, out: Tensor) -> None:
            exact = torch.empty(out.shape, dtype=torch.float32)
            _on_host(a, b, exact)
            out.copy_(exact)

        for each in (wide, msgspec.structs.replace(wide, run=narrow, narrow=True, output=real.element)):
            _rows(each, plan.shapes.accelerator)


if __name__ == "__main__":
    main()
