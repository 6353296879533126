"""What needs no device: plans, shapes, rings, memory limits and statistics."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodevet.checks.burnin.errors import RefusedError
from nodevet.checks.burnin.families import data_types
from nodevet.checks.burnin.host import cpu_quota, has_bf16_units, host_memory_allowance, last_level_cache_bytes
from nodevet.checks.burnin.layout import fit_memory, fit_shape, lay_out
from nodevet.checks.burnin.metrics import UNITS, figures, verification_state
from nodevet.checks.burnin.plan import GemmRequest, load_plans, planned_shape, requests_for
from nodevet.checks.burnin.rates import late_batches, overhead_ratio, percentile, upper_bound_95
from nodevet.checks.core.errors import UsageError
from nodevet.exporters.format import ABSENT, one_in

GIB = 1 << 30


@pytest.mark.parametrize("plan", ["probe", "quick", "burn-in"])
@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_plans_can_be_run(plan: str, kind: str) -> None:
    """Every plan has formats and a shape for each kind; its requests survive the wire."""
    requests = requests_for(plan, "some-device", kind)
    assert requests
    for request in requests:
        assert request.dtype in data_types()
        assert msgspec.convert(msgspec.to_builtins(request), GemmRequest) == request
        assert all(side % 128 == 0 for side in planned_shape(plan, kind, 2, request.dtype))


def test_plan_is_scaled_to_the_processor() -> None:
    """A processor with many cores gets a larger product."""
    shapes = [planned_shape("probe", "cpu", cores, "fp32") for cores in (1, 2, 15, 16, 48, 128)]
    assert shapes == sorted(shapes)
    assert shapes[0] < shapes[3] < shapes[5]
    assert planned_shape("probe", "cpu", 2, "int8")[2] == 2 * planned_shape("probe", "cpu", 2, "fp32")[2]


def test_probe_takes_seconds() -> None:
    """The plan that runs by itself on every node stays short and small."""
    probe = load_plans()["probe"]
    assert probe.seconds * max(map(len, probe.dtypes.values())) <= 6
    assert 0 < probe.maximum_memory_bytes <= 2 * GIB


def test_unknown_plan_is_told_with_those_that_exist() -> None:
    """A typo in the plan's name is answered with the names."""
    with pytest.raises(UsageError, match="'porbe' does not exist; choose one of probe, quick, burn-in"):
        requests_for("porbe", "cpu-0", "cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [("shape", (100, 128, 128)), ("memory_ratio", 0.0), ("memory_ratio", 1.0), ("seconds", 0.0), ("seconds", -1.0)],
)
def test_impossible_request_is_refused(field: str, value: object) -> None:
    """A request that cannot be run is refused before anything is started."""
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({"device": "cpu-0", "dtype": "fp32", "seconds": 1.0, field: value}, GemmRequest)


@given(
    memory=st.integers(1, 200).map(lambda count: count * GIB),
    cache=st.one_of(st.none(), st.integers(1, 512).map(lambda count: count << 20)),
    gemm_seconds=st.floats(1e-4, 1.0),
    side=st.sampled_from([256, 1024, 4096, 16384]),
)
def test_ring_holds_its_promises(memory: int, cache: int | None, gemm_seconds: float, side: int) -> None:
    """Whatever fits: no common factor with the operand sets, evidence outlives a batch, memory within its budget."""
    shape = (side, side, 8192)
    try:
        ring = lay_out(
            shape,
            data_types()["bf16"],
            4,
            budget_bytes=memory,
            cache_bytes=cache,
            gemm_seconds=gemm_seconds,
            seconds=60.0,
        )
    except RefusedError:
        assert memory < 3 * GIB + 40 * side * side
        return
    assert ring.slots % 3
    assert ring.slots >= 4
    assert 1 <= ring.lag < ring.slots
    assert 1 <= ring.batch <= ring.slots - ring.lag
    assert ring.batch == 1 or ring.batch * gemm_seconds <= 0.1 + 1e-9
    assert ring.bytes <= memory
    assert ring.covers_cache is (None if cache is None else ring.lag * side * side * 4 >= 2 * cache)


def test_a_probe_does_not_wait_for_a_cache_that_it_cannot_fill() -> None:
    """A virtual machine that reports 480 MB of cache: 960 products would wait, for a load of 2 s."""
    ring = lay_out(
        (512, 512, 4096),
        data_types()["fp32"],
        4,
        budget_bytes=2 * GIB,
        cache_bytes=480 << 20,
        gemm_seconds=0.02,
        seconds=2.0,
    )
    assert (ring.lag, ring.covers_cache) == (100, False)
    assert ring.bytes < GIB // 2


def test_shape_is_halved_until_a_product_is_short_enough() -> None:
    """On a slow device K shrinks first, then the sides; a fast one keeps the shape of the plan."""
    rate = 1e12

    def measure(shape: tuple[int, int, int]) -> float:
        return math.prod(shape) / rate

    assert fit_shape((4096, 4096, 8192), 65536, 0.2, measure)[0] == (4096, 4096, 8192)
    shape, seconds = fit_shape((4096, 4096, 8192), 65536, 0.01, measure)
    assert shape[0] * shape[1] * shape[2] <= 0.01 * rate
    assert seconds <= 0.01
    assert fit_shape((4096, 4096, 65536), 32768, 10.0, measure)[0] == (4096, 4096, 32768)
    assert fit_shape((512, 512, 4096), 65536, 1e-9, measure)[0] == (256, 256, 512)


def test_shape_is_halved_until_it_fits_the_memory() -> None:
    """A small machine gets a smaller product instead of a refusal; one that is small enough keeps its shape."""
    bf16 = data_types()["bf16"]
    assert fit_memory((4096, 4096, 8192), bf16, 4, 64 * GIB) == (4096, 4096, 8192)
    shape = fit_memory((512, 512, 4096), bf16, 2, 16 << 20)
    assert shape < (512, 512, 4096)
    lay_out(shape, bf16, 2, budget_bytes=16 << 20, cache_bytes=None, gemm_seconds=0.01, seconds=1.0)
    assert fit_memory((512, 512, 4096), bf16, 2, 0) == (256, 256, 512)


def test_slow_device_is_not_sent_into_minutes_of_work() -> None:
    """A shape that is predicted to take far too long is never tried."""
    tried: list[float] = []

    def measure(shape: tuple[int, int, int]) -> float:
        tried.append(math.prod(shape) / 1e8)
        return tried[-1]

    fit_shape((512, 512, 4096), 65536, 0.05, measure)
    assert max(tried) <= 1.0


def machine(root: Path, *, available_kib: int, cgroup: str, files: dict[str, str]) -> str:
    """Write a captured tree with the memory and the cgroup of a process; return its root."""
    tree = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n", "proc/self/cgroup": cgroup}
    for name, text in (tree | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return str(root)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 8 * GIB // 10),
        ("0::/job\n", {"sys/fs/cgroup/job/memory.max": "max\n"}, 8 * GIB // 10),
        (
            "0::/job/step\n",
            {
                "sys/fs/cgroup/job/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/job/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/job/step/memory.max": f"{4 * GIB}\n",
            },
            2 * GIB // 10,
        ),
        (
            "4:memory:/job\n",
            {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * GIB}\n",
            },
            0,
        ),
    ],
)
def test_load_takes_a_tenth_of_what_is_free(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    """The allowance is 10 % of the available memory or of what the innermost limit leaves, in both cgroup versions."""
    root = machine(tmp_path, available_kib=8 << 20, cgroup=cgroup, files=files)
    assert host_memory_allowance(root) == expected


@pytest.mark.parametrize("told", [None, "", "MemTotal: 99 kB\n", "MemAvailable:\n", "MemAvailable: plenty kB\n"])
def test_unreadable_memory_is_refused(tmp_path: Path, told: str | None) -> None:
    """Without knowing the free memory no load is started."""
    if told is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(told)
    with pytest.raises(RefusedError, match="meminfo"):
        host_memory_allowance(str(tmp_path))


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/a\n", {}, None),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        (
            "2:cpu,cpuacct:/a\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
    ],
)
def test_processor_quota_is_read(tmp_path: Path, cgroup: str, files: dict[str, str], expected: float | None) -> None:
    """A quota of the cgroup bounds the threads; without one there is none."""
    assert cpu_quota(machine(tmp_path, available_kib=1, cgroup=cgroup, files=files)) == expected


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 sve\n", True),
        ("processor\t: 0\ncpu\t\t: POWER9\n", False),
        ("", None),
    ],
)
def test_bf16_units_are_read_from_the_flags(tmp_path: Path, cpuinfo: str, expected: bool | None) -> None:
    """Processors of both architectures tell whether they multiply bf16 themselves; None: the kernel is silent."""
    files = {"proc/cpuinfo": cpuinfo}
    assert has_bf16_units(machine(tmp_path, available_kib=1, cgroup="", files=files)) is expected


def test_caches_shared_by_processors_count_once(tmp_path: Path) -> None:
    """Two processors with one last-level cache have one, not two; unknown is None."""
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/cache/{index}/{name}": text
        for cpu in (0, 1, 2)
        for index, level, size, shared in (
            ("index0", 1, "32K", str(cpu)),
            ("index3", 3, "32768K", "0-1" if cpu < 2 else "2"),
        )
        for name, text in (("level", f"{level}\n"), ("size", f"{size}\n"), ("shared_cpu_list", f"{shared}\n"))
    }
    root = machine(tmp_path, available_kib=1, cgroup="", files=files)
    assert last_level_cache_bytes(frozenset({0, 1}), root) == 32 << 20
    assert last_level_cache_bytes(frozenset({0, 1, 2}), root) == 64 << 20
    assert last_level_cache_bytes(frozenset({9}), root) is None


@pytest.mark.parametrize(
    ("wrong", "trials", "bound"),
    [(0, 0, None), (0, 1, 0.95), (0, 300, 0.009936), (1, 100, 0.04656), (10, 100, 0.16371), (5, 5, 1.0)],
)
def test_upper_bound_is_the_exact_binomial_one(wrong: int, trials: int, bound: float | None) -> None:
    """Clopper-Pearson, one-sided 95 %; the values are those of published tables."""
    assert upper_bound_95(wrong, trials) == (None if bound is None else pytest.approx(bound, abs=2e-5))


@given(trials=st.integers(1, 10**7), wrong=st.integers(0, 50))
def test_upper_bound_lies_above_the_rate_and_shrinks_with_trials(trials: int, wrong: int) -> None:
    """The bound is never below what was seen, and more clean trials only lower it."""
    wrong = min(wrong, trials)
    bound, later = upper_bound_95(wrong, trials), upper_bound_95(wrong, 2 * trials)
    assert bound is not None and later is not None
    assert wrong / trials <= bound <= 1
    assert later <= bound


def test_late_batches_are_those_beyond_twice_the_median() -> None:
    """One held-up batch among even ones is named by its position; too few batches say nothing."""
    assert late_batches([1.0, 1.1, 0.9, 2.3, 1.0]) == [3]
    assert late_batches([1.0, 9.0]) == []


def test_percentiles_interpolate() -> None:
    """The 5th percentile of 0..100 is 5; nothing has no percentile."""
    assert percentile([float(value) for value in range(101)], 0.05) == 5.0
    assert percentile([4.0], 0.95) == 4.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_overhead_ignores_one_interrupted_batch() -> None:
    """Medians decide; without measurements there is no figure."""
    assert overhead_ratio([1.02, 1.02, 9.0], [1.0, 1.0, 1.0]) == pytest.approx(0.02)
    assert overhead_ratio([], [1.0]) is None


@pytest.mark.parametrize(
    ("refuted", "passed", "verified", "mismatches", "state"),
    [
        (0, True, 10, 0, "verified"),
        (0, True, 10, 1, "mismatch"),
        (0, False, 10, 0, "unmeasured: self-test"),
        (0, False, 10, 1, "mismatch"),
        (1, False, 0, 0, "unmeasured: range or device"),
        (0, True, 0, 0, "unmeasured: nothing verified"),
    ],
)
def test_nothing_is_called_verified_by_absence(
    refuted: int, passed: bool, verified: int, mismatches: int, state: str
) -> None:
    """Only checked products of a proven checker count, and a mismatch counts in any case."""
    assert (
        verification_state(refuted=refuted, self_test_passed=passed, verified=verified, mismatches=mismatches) == state
    )


def test_figures_have_the_units_of_the_table() -> None:
    """A figure comes with its unit; one that is in no table is a mistake of ours."""
    (metric,) = figures({"tflops_median": 1.5})
    assert (metric.name, metric.value, metric.unit) == ("tflops_median", 1.5, UNITS["tflops_median"])
    with pytest.raises(KeyError, match="speed"):
        figures({"speed": 1.0})


@pytest.mark.parametrize("products", [1, 2, 36, 66, 72, 178, 30037, 10**9])
def test_a_shown_bound_claims_no_more_than_was_proven(products: int) -> None:
    """66 products without a wrong one prove an error rate below 1/22.5, which is no 1/23."""
    bound = upper_bound_95(0, products)
    assert bound is not None
    shown = int(one_in(bound).removeprefix("1/").replace(",", ""))
    assert 1 / shown >= bound * (1 - 1e-9)
    assert 1 / (shown + 1) < bound
    assert one_in(1 / 30037) == "1/30037"


@given(st.none() | st.floats())
@example(1e-320)
def test_a_bound_of_any_number_is_shown(rate: float | None) -> None:
    """A load may send any number; one whose inverse is no number is shown as absent."""
    assert one_in(rate) == ABSENT or one_in(rate).startswith("1/")
