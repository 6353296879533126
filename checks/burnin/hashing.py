"""The hash that generates every operand: the same integers on every device, without a random generator.

The mixer is the 32-bit finaliser "lowbias32" (Chris Wellons, https://nullprogram.com/blog/2018/07/31/, public
domain): two multiplications and three shifts, bijective. It runs in 64-bit integers masked to 32 bits because not
every device multiplies unsigned 32-bit integers.
"""

from __future__ import annotations

from .library import Tensor, torch

_MASK = 0xFFFFFFFF
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B


def hash_32(value: int) -> int:
    """Return the hash of the low 32 bits of *value*, in 0 .. 2**32 - 1."""
    value &= _MASK
    value ^= value >> 16
    value = (value * _FIRST) & _MASK
    value ^= value >> 15
    value = (value * _SECOND) & _MASK
    return value ^ (value >> 16)


def hash_32_tensor(values: Tensor) -> Tensor:
    """Replace the int64 *values* in place by the hashes of their low 32 bits, and return them."""
    values.bitwise_and_(_MASK)
    shifted = values >> 16
    values.bitwise_xor_(shifted)
    values.mul_(_FIRST).bitwise_and_(_MASK)
    torch.bitwise_right_shift(values, 15, out=shifted)
    values.bitwise_xor_(shifted)
    values.mul_(_SECOND).bitwise_and_(_MASK)
    torch.bitwise_right_shift(values, 16, out=shifted)
    return values.bitwise_xor_(shifted)


def make_key(*parts: int) -> int:
    """Return a 32-bit key that depends on all of *parts* and their order, such as (seed, set, operand)."""
    key = 0
    for part in parts:
        key = hash_32(key ^ hash_32(part + 0x9E3779B9))
    return key
