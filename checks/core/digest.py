"""Digests by CPython's own code: hashlib loads OpenSSL's library, which takes 3 MiB.

``random`` of the standard library does the same for the same reason. Where an interpreter has no such code, it is
hashlib.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def _first(name: str, *modules: str) -> Callable[..., Any]:
    """Return the function *name* of the first of *modules* that has it, or of hashlib."""
    for module in modules:
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return found
    return getattr(importlib.import_module("hashlib"), name)  # type: ignore[no-any-return]


_sha256 = _first("sha256", "_sha256", "_sha2")  # CPython 3.11, later ones
_blake2b = _first("blake2b", "_blake2")


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest of *data*."""
    return bytes(_sha256(data).digest())


def blake2b(data: bytes, size_bytes: int) -> bytes:
    """Return the BLAKE2b digest of *data*, which has *size_bytes*."""
    return bytes(_blake2b(data, digest_size=size_bytes).digest())
