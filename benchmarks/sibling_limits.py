"""Computes checks/reference/sibling_limits.csv: the limit that one of 2000 healthy nodes passes by chance.

Rates of healthy devices are drawn from a normal distribution; the statistic does not depend on its mean or width.
"""

from __future__ import annotations

import math

import torch

NODES = 4_000_000
PART = 500_000
ALARMS = 1 / 2000


def statistics_of(rates: torch.Tensor, slow: int) -> torch.Tensor:
    """Return for each row of *rates* (nodes, devices) how far the *slow* slowest are below the others."""
    ordered = rates.sort(1).values
    others = ordered[:, slow:]
    width = others.std(1) * math.sqrt(1 + 1 / others.shape[1])
    return (others.mean(1) - ordered[:, slow - 1]) / width


def limit(devices: int, slow: int, nodes: int = NODES) -> float:
    """Return the limit for so many *devices*."""
    kept = int(nodes * ALARMS)
    parts = [
        statistics_of(torch.randn(PART, devices, dtype=torch.float64), slow).topk(kept).values
        for _ in range(max(1, nodes // PART))
    ]
    return float(torch.cat(parts).sort(descending=True).values[kept])


def main() -> None:
    """Print the rows of the table."""
    torch.manual_seed(1)
    for devices in range(6, 17):
        for slow in (1, 2) if devices >= 8 else (1,):
            print(f"{devices},{slow},{limit(devices, slow):.2f}")


if __name__ == "__main__":
    main()
