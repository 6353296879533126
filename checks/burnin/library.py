"""The one place where torch is imported; only the load child and what it imports may import this module.

torch says on import that NumPy is absent. Nothing here uses NumPy, so that notice is kept quiet.
"""

from __future__ import annotations

import warnings

__all__ = ["OutOfMemoryError", "Tensor", "torch"]

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch
    from torch import Tensor

OutOfMemoryError: type[RuntimeError] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""Memory of an accelerator that ran out; torch 2.4 has it in ``torch.cuda`` alone."""
