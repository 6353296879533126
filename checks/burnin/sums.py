"""Sums over rows and over columns of the raw bits, compared instead of the whole matrix.

The matrix is viewed as 64-bit integers and summed with wrap-around. Each direction reads every bit once and needs
no temporary copy; together they miss only changes that cancel in a row and in a column at once.
"""

from __future__ import annotations

from .library import Tensor, torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_view(matrix: Tensor) -> Tensor:
    """Return *matrix* as integers of its own element size, sharing memory: (rows, columns)."""
    return matrix.view(_INTEGERS[matrix.element_size()])


def as_words(matrix: Tensor) -> Tensor:
    """Return the contiguous *matrix* (rows, columns) as 64-bit words, sharing memory: (rows, words)."""
    return matrix.view(torch.int64)


def row_sums(matrix: Tensor) -> Tensor:
    """Return the sum of the words of each row: (rows,), int64, on the device of *matrix*."""
    return as_words(matrix).sum(1)


def column_sums(matrix: Tensor) -> Tensor:
    """Return the sum of each column of words: (words,), int64, on the device of *matrix*."""
    return as_words(matrix).sum(0)
