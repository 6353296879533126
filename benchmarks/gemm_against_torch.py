"""The burn-in's checked loop beside a bare loop of torch's product on one pair of operands, interleaved in one run.

The difference holds more than checking: the ring works in memory, the bare loop in the caches. The data differ, too:
hashed integers here, normal numbers there.
Run: python benchmarks/gemm_against_torch.py [--dtype fp32] [--shape 512 512 4096] [--rounds 20] [--json PATH]
"""

from __future__ import annotations

from gemm_loops import report

if __name__ == "__main__":
    report("gemm_against_torch", "checked", "bare")
