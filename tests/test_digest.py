"""Digests without OpenSSL's library."""

from __future__ import annotations

import hashlib
import math

from nodevet.checks.core import digest


def test_digests_are_those_of_hashlib() -> None:
    """What an earlier release stored is found again."""
    for data in (b"", b"a node", b"\xff" * 1000):
        assert digest.sha256(data) == hashlib.sha256(data).digest()
        assert digest.blake2b(data, 8) == hashlib.blake2b(data, digest_size=8).digest()


def test_an_interpreter_without_code_of_its_own_uses_hashlib() -> None:
    """The names of its modules changed with CPython 3.12."""
    assert digest._first("sqrt", "_no_such_module", "math") is math.sqrt
    assert digest._first("sha256", "_no_such_module") is hashlib.sha256
    assert digest._first("sha256", "math") is hashlib.sha256
