"""Which error codes of NVML and AMD SMI count against a driver or a device: the listed ones, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from fakes.views import GPU_READINGS, gpu, healthy, judge, of, sample, with_samples

from nodevet.checks.backends.amd import amdsmi
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.driver_errors import Asked, CodeName, ErrorRow
from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.core.model import Failure, FailureKind, Outcome
from nodevet.checks.reference.tables import load_table

LOST, FAULTY, ERROR = FailureKind.LOST, FailureKind.FAULTY, FailureKind.ERROR
NVML_COUNTING = {
    8: FAULTY,
    9: FailureKind.NO_DRIVER,
    11: LOST,
    14: FAULTY,
    15: LOST,
    16: FailureKind.RESET_REQUIRED,
    18: FailureKind.VERSION_MISMATCH,
    28: LOST,
    999: ERROR,
}
AMD_COUNTING = {6: LOST, 12: LOST, 18: ERROR, 34: FailureKind.NO_DRIVER, 54: ERROR}
"""What is evidence whatever was asked, each since the beginning; the rest below depends on the question."""

NVML_OPENING = {**NVML_COUNTING, 2: LOST, 6: ERROR}
AMD_DEVICE = {**AMD_COUNTING, 31: LOST, 42: ERROR, 43: ERROR, 56: ERROR}

NVML_CODES = range(-1, 1100)
AMD_CODES = (*range(-2, 300), *range(0xFFFFFF00, 0x100000000))

Refused = Callable[[int, str, Asked], BackendError]


@pytest.mark.parametrize(
    ("refused", "denied", "codes", "counting"),
    [
        (
            nvml.refused,
            nvml.DENIED,
            NVML_CODES,
            {Asked.ANY: NVML_COUNTING, Asked.DEVICE: NVML_COUNTING, Asked.OPEN: NVML_OPENING},
        ),
        (
            amdsmi.refused,
            amdsmi.DENIED,
            AMD_CODES,
            {Asked.ANY: AMD_COUNTING, Asked.DEVICE: AMD_DEVICE, Asked.OPEN: AMD_DEVICE},
        ),
    ],
    ids=["nvml", "amdsmi"],
)
def test_a_code_that_is_not_listed_blames_nobody_and_is_named(
    refused: Refused, denied: frozenset[int], codes: Iterable[int], counting: dict[Asked, dict[int, FailureKind]]
) -> None:
    """All codes that the libraries know, and those of releases to come: what counts is this list and nothing else."""
    for asked, kinds in counting.items():
        for code in codes:
            failure = refused(code, "a call", asked).failure
            unlisted = FailureKind.DENIED if code in denied else ERROR
            assert (failure.kind, failure.of_driver) == (kinds.get(code, unlisted), code in kinds), (asked, code)
            assert code < 0 or re.search(rf"\b{code}\b", failure.detail), failure.detail


@pytest.mark.parametrize(
    ("is_evidence", "codes", "counting"),
    [
        (nvml.is_evidence, NVML_CODES, NVML_COUNTING),
        (amdsmi.is_evidence, AMD_CODES, AMD_DEVICE),
    ],
    ids=["nvml", "amdsmi"],
)
def test_a_silent_board_is_the_drivers_doing_where_a_listed_code_says_so(
    is_evidence: Callable[[Iterable[int]], bool], codes: Iterable[int], counting: dict[int, FailureKind]
) -> None:
    """An argument that is refused, a wrapper that cannot understand and what is unknown leave it unknown."""
    assert {code for code in codes if is_evidence({0, code})} == set(counting)


def test_listed_codes_have_the_names_that_the_libraries_give_them() -> None:
    """A number that slipped by one would blame a board for what another user does."""
    rows = load_table("driver_errors.csv", ErrorRow)
    spec = util.find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text(encoding="utf-8")
    amd = {name: int(code) for name, code in re.findall(r"^(AMDSMI_STATUS_\w+) = (\d+)$", wrapper, re.MULTILINE)}
    nvidia = {name: code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert len(rows) == len({(row.library, row.code) for row in rows})
    for row in rows:
        assert {"nvml": nvidia, "amdsmi": amd}[row.library][row.name] == row.code, row
        assert row.meaning
        assert row.source


def test_an_answer_that_the_wrapper_cannot_take_apart_is_no_internal_error_of_the_driver() -> None:
    """A driver update that prints one odd string: the code of an internal error counts, and is the driver's alone."""

    def odd() -> str:
        return b"\xff".decode("ascii")

    module = SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlDeviceGetCount=odd)
    progress = SimpleNamespace(call=lambda _text: None, returned=lambda: None)
    with pytest.raises(BackendError) as raised:
        nvml.Library(module, progress).system("nvmlDeviceGetCount")  # type: ignore[arg-type]
    assert (raised.value.failure.kind, raised.value.failure.of_driver) == (ERROR, False)
    assert "the wrapper could not read the answer" in raised.value.failure.detail


def test_nothing_is_evidence_that_nobody_called_so() -> None:
    """A failure that somebody makes tomorrow, and forgets to think of who is to blame, blames nobody."""
    assert not Failure(ERROR, "for a test").of_driver
    assert not BackendError(ERROR, "for a test").failure.of_driver


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("device.lost", LOST),
        ("device.reset_required", FailureKind.RESET_REQUIRED),
        ("device.faulty", FAULTY),
    ],
)
@pytest.mark.parametrize("of_driver", [True, False])
def test_a_device_is_lost_on_evidence_alone(code: str, kind: FailureKind, of_driver: bool) -> None:
    """A library that the machine refuses memory calls any board lost: to reboot for it helps nobody."""
    silent = sample(gpu(), {}, failure=Failure(kind, "for a test", of_driver=of_driver))
    found = of(judge("inventory", with_samples(healthy(), silent)), code, gpu().id)
    assert found.outcome is (Outcome.FAIL if of_driver else Outcome.UNMEASURED)
    answering = of(judge("inventory", with_samples(healthy(), sample(gpu(), GPU_READINGS))), code, gpu().id)
    assert answering.outcome is Outcome.PASS


WITHOUT_DESCRIPTORS = """
import importlib, resource, sys
library = importlib.import_module(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    open("/dev/null")
except OSError:
    print(*{str(library.refused(code, "open").failure.detail) for code in range(100)}, sep="\\n")
"""


@pytest.mark.parametrize("vendor", ["nvidia.nvml", "amd.amdsmi"])
def test_every_code_is_named_by_a_reader_that_has_no_descriptor_left(vendor: str) -> None:
    """A library that is refused descriptors says so by a code: its name must not need one."""
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, f"nodevet.checks.backends.{vendor}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    named = {library.name for library in load_table("code_names.csv", CodeName) if library.code in range(1, 40)}
    assert any(name in done.stdout for name in named)
    assert len(done.stdout.splitlines()) == 100
