"""What every test shares: a clean environment, no process left behind, and skips that must be expected."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest
from fakes import depth
from fakes.freezer import NO_FREEZER, freeze
from fakes.kernel import NO_CRASHES, NO_KERNEL_LOG, NO_MOUNTS
from fakes.privileges import NO_ROOT, NO_TRACING
from fakes.silent_file import NO_LEASES
from fakes.slurm_cluster import NO_DEVICE_NODES, slurm, start_slurm
from fakes.small_disk import NO_SMALL_DISK, small_disk

__all__ = ["freeze", "slurm", "small_disk", "start_slurm"]  # fixtures of every test, imported above

pytest_plugins = ["fakes.amdsmi.fixtures", "fakes.nvml.fixtures"]

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT.parent / "shared" / "captures"

NO_ACCELERATOR = "no accelerator on this machine"
NO_CAPTURES = "no captured logs beside this checkout"
NO_SOURCE_TREE = "no source tree: the installed wheel is under test"
EXPECTED_SKIPS = (
    NO_ACCELERATOR, NO_CAPTURES, NO_CRASHES, NO_DEVICE_NODES, NO_FREEZER, NO_KERNEL_LOG, NO_LEASES, NO_MOUNTS, NO_ROOT,
    NO_SMALL_DISK, NO_SOURCE_TREE, NO_TRACING,
)  # fmt: skip
"""What no package brings. Everything else that skips under CI=true is a failure: a missing tool must be installed."""

MUST_RUN_EVERYTHING = bool(os.environ.get("CI"))

FOREIGN_PREFIXES = ("NODEVET_", "SLURM_", "SBATCH_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_")
FOREIGN_NAMES = (
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID",
    "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY",
    "JOURNAL_STREAM", "INVOCATION_ID", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES",
)  # fmt: skip

ALLOCATIONS_PER_COLLECTION = 20_000
"""As in the agent: with Python's default of 700, a sixth of the processor time of a test of the engine went there."""

STOP_SECONDS = 2.0
"""How long a child that was told to stop may take to go after its test has ended."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are written anew on request; the difference is then read in the diff."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption("--soak", action="store_true", help="run campaigns in full, not a tenth or less of each")


def pytest_configure(config: pytest.Config) -> None:
    """A property is judged by its outcome: how long one example took says how busy the machine is."""
    depth.IS_CAMPAIGN = bool(config.getoption("--soak"))
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("busy", hypothesis.settings(), deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("busy")


LONGEST_FILES = (
    "test_scenarios",
    "test_slurm_writer_real",
    "test_slurm_jobs",
    "test_docs_commands",
    "test_mutants",
    "test_blame",
    "test_agent_nvidia",
    "test_drills",
    "test_load_delivery",
    "test_slurm_limits_real",
    "test_backend_nvidia",
    "test_gate_refusal",
    "test_site_ends",
    "test_burnin_workload",
)
"""Each takes more than a minute; the longest first, those that compute between those that wait."""


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """A text is compared with its golden file; `make golden` writes the file, and the difference is read."""
    is_written = bool(request.config.getoption("--update-golden"))

    def compare(path: Path, text: str) -> None:
        if is_written:
            path.write_text(text)
        assert path.read_text() == text, f"{path.name} is out of date: make golden, and read the difference"

    return compare


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many rounds a campaign of so many takes here: all of them under --soak, else a tenth, and at least one."""
    is_whole = bool(request.config.getoption("--soak"))
    return lambda rounds: rounds if is_whole else max(1, rounds // 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that counts its rounds by `campaign` belongs to `make soak`, one with a golden file to `make golden`.

    The files that take longest come first, so that no worker begins one while the others have nothing left.
    """
    first = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))
    for item in items:
        if isinstance(item, pytest.Function):
            for marker in {"soak" if name == "campaign" else name for name in item.fixturenames} & {"soak", "golden"}:
                item.add_marker(marker)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end, as in the agent: no garbage collection need look at it."""
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree; skips where the installed wheel is tested out of the tree's reach."""
    if not (ROOT / "checks" / "__init__.py").is_file():
        pytest.skip(NO_SOURCE_TREE)
    return ROOT


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of outputs captured on real machines; skips where it does not lie beside the checkout."""
    if not CAPTURES.is_dir():
        pytest.skip(NO_CAPTURES)
    return CAPTURES


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees settings of the shell, the job or the service that started the test run."""
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_child_left_behind() -> Iterator[None]:
    """A test that leaves a running child process fails, and the child is killed."""
    before = _children()
    yield
    _, left = psutil.wait_procs(_children() - before, timeout=STOP_SECONDS)
    names = [_describe(process) for process in left]
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=STOP_SECONDS)
    assert names == [], f"child processes outlived their test: {names}"


def _children() -> set[psutil.Process]:
    """Return the processes below this one. Mostly there is none, which the kernel tells a hundred times faster."""
    try:
        is_alone = not any((task / "children").read_bytes() for task in Path("/proc/self/task").iterdir())
    except OSError:  # a thread ended meanwhile, or a kernel that does not tell
        is_alone = False
    return set() if is_alone else set(psutil.Process().children(recursive=True))


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid} (gone meanwhile)"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where no device node of an accelerator exists."""
    if item.get_closest_marker("gpu") and not any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))):
        pytest.skip(NO_ACCELERATOR)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI=true a test that skips for an unexpected reason has failed."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips while it is collected."""
    report = yield
    _refuse_unexpected_skip(report)
    return report


def _refuse_unexpected_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not MUST_RUN_EVERYTHING or not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason not in EXPECTED_SKIPS:
        report.outcome = "failed"
        report.longrepr = f"unexpected skip under CI: {reason}"
