"""Operands: their sums stay exact, and the same numbers come out everywhere."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fakes.burnin import CPU_FORMATS, prepared
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.burnin.errors import NotExactError
from nodevet.checks.burnin.families import HEADROOM_SIGMAS, Family, data_types, headroom_sigmas, operand_families
from nodevet.checks.burnin.hashing import hash_32, hash_32_tensor, make_key
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.operands import OperandSet, build_sets, make_sets
from nodevet.checks.burnin.recipe import entry, make_integers
from nodevet.checks.burnin.rotation import keeps_operand_set, operand_set_of
from nodevet.checks.burnin.scales import powers_of_two, unit_exponents
from nodevet.checks.burnin.sums import bit_view
from nodevet.checks.burnin.witness import true_bits, true_block

MULTIPLES_OF_128 = st.integers(1, 8).map(lambda count: 128 * count)
SEEDS = st.integers(0, 2**32 - 1)


def build(dtype: str, m: int, n: int, k: int, seed: int) -> list[OperandSet]:
    """Return operands of *dtype* on the processor, accelerators' formats included."""
    element = getattr(torch, data_types()[dtype].torch_name)
    return build_sets(make_sets(data_types()[dtype], m, n, k, 0, seed), element, torch.device("cpu"))


def test_hash_agrees_with_published_vectors() -> None:
    """The mixer is the published one: its values for small inputs, computed by its definition in C."""
    assert [hash_32(value) for value in (0, 1, 2)] == [0, 1753845952, 3507691905]


@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_tensor_hash_equals_scalar_hash(values: list[int]) -> None:
    """The hash of a tensor on a device is the hash of its numbers on the host."""
    assert hash_32_tensor(torch.tensor(values, dtype=torch.int64)).tolist() == [hash_32(value) for value in values]


def test_key_depends_on_every_part_and_their_order() -> None:
    """Two sets, two operands or two seeds never share a key by a swap of their numbers."""
    keys = {make_key(a, b, c) for a in range(6) for b in range(6) for c in range(6)}
    assert len(keys) == 6**3


@settings(max_examples=15, deadline=None)
@given(dtype=st.sampled_from(sorted(data_types())), k=MULTIPLES_OF_128, seed=SEEDS)
def test_every_order_of_summation_gives_the_same_bits(dtype: str, k: int, seed: int) -> None:
    """Products added in fp32 forwards, backwards, shuffled and in eight parts are the integers of the hash."""
    data_type = data_types()[dtype]
    accumulator = torch.float64 if data_type.accumulator_bits > 24 else torch.float32
    for operands in build(dtype, 128, 128, k, seed):
        a, b = operands.a.matrix.to(accumulator)[:16], operands.b.matrix.to(accumulator)[:, :16]
        every = torch.arange(16)
        sums = true_block(operands, every, every)
        units = unit_exponents(operands.a.recipe, operands.b.recipe, data_type, every, every)
        truth = (sums * powers_of_two(units - data_type.output_exponent)).to(accumulator)
        order = torch.randperm(k, generator=torch.Generator().manual_seed(seed % 2**31))
        assert torch.equal(a @ b, truth)
        assert torch.equal(a.flip(1) @ b.flip(0), truth)
        assert torch.equal(a[:, order] @ b[order], truth)
        parts = [a[:, part] @ b[part] for part in torch.arange(k).chunk(8)]
        assert torch.equal(torch.stack(parts).sum(0), truth)
        assert int(sums.abs().max()) < 1 << data_type.accumulator_bits


@given(
    dtype=st.sampled_from(sorted(data_types())),
    k=st.integers(1, 1 << 20),
)
def test_families_are_exact_or_refused(dtype: str, k: int) -> None:
    """No K gives a family whose sums could leave the accumulator: it is refused, never narrowed."""
    data_type = data_types()[dtype]
    try:
        families = operand_families(data_type, k)
    except NotExactError:
        assert k > data_type.maximum_k
        return
    assert len(families) == data_type.set_count
    adding = [msgspec.structs.replace(family, anchor=(0, 0)) for family in families if not family.selector]
    assert set(adding) <= set(data_type.families)
    for family in families:
        assert headroom_sigmas(family, data_type.accumulator_bits, k) >= HEADROOM_SIGMAS


def test_headroom_matches_known_figures() -> None:
    """fp16 with +-255 twice is not safe at K of 16k; the families in use are at 32k, in the bits that units keep."""
    old = Family(0, 255, 0, 255)
    assert headroom_sigmas(old, 24, 16384) == pytest.approx(6.05, abs=0.06)
    expected = {"fp16": 7.5, "tf32": 7.5, "fp32": 7.5, "bf16": 28.2, "fp8_e4m3": 10.9, "int8": math.inf}
    for dtype, sigmas in expected.items():
        data_type = data_types()[dtype]
        for family in operand_families(data_type, 16384)[:2]:
            headroom = headroom_sigmas(family, data_type.accumulator_bits, 16384)
            assert headroom == pytest.approx(sigmas, rel=0.02), dtype


def test_square_family_of_bf16_gives_way_at_large_k() -> None:
    """64..127 squared is used up to K of 32k and replaced, not narrowed, above."""
    square = Family(64, 127, 64, 127)
    assert square in operand_families(data_types()["bf16"], 32768)
    assert square not in operand_families(data_types()["bf16"], 65536)


@pytest.mark.parametrize("dtype", sorted(data_types()))
def test_no_operand_is_subnormal_and_exponents_toggle(dtype: str) -> None:
    """Every entry and its unit are normal numbers; columns of A differ in their scale where the format allows."""
    data_type = data_types()[dtype]
    first = build(dtype, 128, 128, 512, 3)[0]
    for operand in (first.a, first.b):
        values = operand.matrix.to(torch.float64).abs()
        nonzero = values[values > 0]
        assert float(nonzero.min()) >= 2.0 ** data_type.exponents[0]
    integers = make_integers(first.a.recipe, torch.arange(128), torch.arange(512))
    scales = first.a.matrix.to(torch.float64) / integers
    assert len(set(scales[5][~scales[5].isnan()].tolist())) == 2 * data_type.exponent_span + 1
    lines = scales[:, 7]
    ranges = data_type.scales
    assert len(set(lines[~lines.isnan()].tolist())) > 0.8 * min(128, ranges.row_high - ranges.row_low + 1)


def test_cast_that_loses_bits_is_refused() -> None:
    """Operands of eleven bits do not become bf16 by rounding."""
    recipes = make_sets(data_types()["fp32"], 128, 128, 128, 0, 1)
    with pytest.raises(NotExactError, match="loses bits"):
        build_sets(recipes, torch.bfloat16, torch.device("cpu"))


def test_seeds_and_sets_differ() -> None:
    """Each operand set and each seed has numbers of its own: a stale result never fits by accident."""
    digests = {
        operand.digest.number()
        for seed in (1, 2)
        for operands in build("fp32", 128, 128, 256, seed)
        for operand in (operands.a, operands.b)
    }
    assert len(digests) == 2 * 2 * data_types()["fp32"].set_count


@pytest.mark.parametrize("dtype", sorted(data_types()))
def test_every_bit_of_operands_and_result_toggles(dtype: str) -> None:
    """Over the sets of a format each bit of A, of B and of the result is 1 in 1 % to 99 % of the entries.

    tf32 is stored in 32 bits, of which its units read 19. The last bit of an fp8 result is blind: only a sum beyond
    four standard deviations sets it.
    """
    data_type = data_types()[dtype]
    every = torch.arange(256)
    wide = getattr(torch, data_type.wide)
    sets = build(dtype, 256, 256, 512, 3)
    shown = {
        "a": [bit_view(operands.a.matrix) for operands in sets],
        "b": [bit_view(operands.b.matrix) for operands in sets],
        "c": [true_bits(operands, data_type, every, every, wide) for operands in sets],
    }
    for name, matrices in shown.items():
        bits = torch.cat([matrix.flatten() for matrix in matrices])
        unread = 13 if dtype == "tf32" and name != "c" else int(dtype == "fp8_e4m3" and name == "c")
        share = {bit: float(((bits >> bit) & 1).double().mean()) for bit in range(unread, 8 * bits.element_size())}
        assert {bit: ones for bit, ones in share.items() if not 0.01 <= ones <= 0.99} == {}, name


@settings(max_examples=20, deadline=None)
@given(dtype=st.sampled_from(sorted(data_types())), k=MULTIPLES_OF_128, seed=SEEDS)
def test_one_entry_without_tensors_is_the_entry_of_the_matrix(dtype: str, k: int, seed: int) -> None:
    """The host's own integers are those of the tensors, at the anchor, in full significands and where a set selects."""
    for _family, *recipes in make_sets(data_types()[dtype], 128, 128, k, 0, seed):
        for recipe in recipes:
            anchored = torch.tensor([recipe.anchor[0]])
            inner = torch.unique(torch.cat([anchored, torch.arange(0, recipe.inner, 37)]))
            lines = torch.arange(0, recipe.lines, 11)
            rows, columns = (lines, inner) if recipe.inner_axis == 1 else (inner, lines)
            by_hand = [[entry(recipe, row, column) for column in columns.tolist()] for row in rows.tolist()]
            assert make_integers(recipe, rows, columns).tolist() == by_hand


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_set_that_selects_has_one_entry_per_line_and_full_significands_opposite(dtype: str) -> None:
    """Each result is one element of the other operand: nothing is added, so all of its bits are exact."""
    data_type = data_types()[dtype]
    selecting = [operands for operands in build(dtype, 128, 128, 256, 5) if operands.family.selector]
    assert [operands.family.selector for operands in selecting] == ["b", "a"]
    for operands in selecting:
        a, b = operands.a.matrix != 0, operands.b.matrix != 0
        one, full, axis = (b, a, 0) if operands.family.selector == "b" else (a, b, 1)
        assert one.sum(axis).eq(1).all()
        assert full.all()
        every = torch.arange(128)
        assert int(true_block(operands, every, every).abs().min()) >= 1 << (data_type.significand_bits - 1)


def test_anchor_lifts_the_result_into_the_last_bit() -> None:
    """Sums lie between 2**22 and 2**24, so that their unit is the last or next to last bit of the significand."""
    for operands in build("fp32", 128, 128, 512, 5)[:2]:
        every = torch.arange(128)
        sums = true_block(operands, every, every).abs()
        assert 1 << 22 < int(sums.min()) <= int(sums.max()) < 1 << 24


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_narrow_result_has_no_anchor(dtype: str) -> None:
    """Rounded to the bits of the format, a result near the anchor would hide most wrong products."""
    data_type = data_types()[dtype]
    assert [any(family.anchor) for family in operand_families(data_type, 512)] == [True, True, False]
    assert [any(family.anchor) for family in operand_families(data_type, 512, narrow=True)] == [False] * 3


@pytest.mark.parametrize(("sets", "every"), [(3, 0), (5, 16)])
def test_no_slot_keeps_its_operand_set(sets: int, every: int) -> None:
    """Whatever number of slots is allowed: a product and the one before in its slot have different sets."""
    allowed = [slots for slots in range(4, 200) if not keeps_operand_set(slots, sets)]
    assert len(allowed) > 120
    for slots in allowed:
        repeats = [n for n in range(slots, 2000) if operand_set_of(n, sets) == operand_set_of(n - slots, sets)]
        assert repeats == []
    rare = [number for number in range(2000) if operand_set_of(number, sets) >= 3]
    assert rare == (list(range(every - 1, 2000, every)) if every else [])
    assert {operand_set_of(number, sets) for number in range(64)} == set(range(sets))


PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[2])
from test_burnin_families import fingerprints
print(json.dumps(fingerprints(int(sys.argv[1]))))
"""


def fingerprints(threads: int) -> dict[str, list[list[int]]]:
    """Return what stands for operands and goldens of every format, made with *threads* threads."""
    made = {dtype: prepared(dtype, threads=threads) for dtype in CPU_FORMATS}
    return {
        dtype: [
            [each.a.digest.number(), each.b.digest.number(), int(golden.rows.sum()), int(golden.columns.sum())]
            for each, golden in zip(ready.sets, ready.goldens, strict=True)
        ]
        for dtype, ready in made.items()
    }


def test_digests_are_equal_across_processes_and_thread_counts() -> None:
    """Another process with another number of threads makes the same operands and proves the same goldens."""
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    output = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, "2", json.dumps(paths)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert json.loads(output) == fingerprints(1)
