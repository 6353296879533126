"""What checking costs: the ring of the burn-in with and without its checks, interleaved in one run.

Run: python benchmarks/gemm_checking_cost.py [--dtype fp32] [--shape 512 512 4096] [--rounds 20] [--json PATH]
"""

from __future__ import annotations

from gemm_loops import report

if __name__ == "__main__":
    report("gemm_checking_cost", "checked", "unchecked")
