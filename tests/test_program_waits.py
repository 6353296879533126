"""A driver's library that waits for another program: the driver is not at fault.

The fake library of these tests does in one call what libraries do: it sends a line to the system's log, or takes a
lock. Its C source is that of the fakes with another function for the log of its calls.
"""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fakes.compile
import pytest
from fakes.gpu_node import GpuNode
from fakes.nvml.build import build_fake_nvml
from fakes.privileges import needs_root

UNIT = ("setpriv", "--bounding-set=-all,+syslog", "--inh-caps=-all")

WAITS = """
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
static void log_call(const char *function, int slot)
{
    const char *path = getenv(scenario_log_variable), *how = getenv("FAKE_WAIT");
    if (!path || !how || slot != 3) return;
    if (!strcmp(how, "lock") && getenv("FAKE_HIDDEN")) prctl(PR_SET_DUMPABLE, 0);
    if (strcmp(function, "nvmlDeviceGetTemperatureV") || access(path, F_OK)) return;
    if (!strcmp(how, "log")) {
        struct sockaddr_un there = {.sun_family = AF_UNIX};
        int line = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        strncpy(there.sun_path, path, sizeof there.sun_path - 1);
        if (!connect(line, (struct sockaddr *)&there, sizeof there))
            for (int number = 0; number < 1000; number++)
                if (send(line, "x", 1, MSG_NOSIGNAL) < 0) break;
        close(line);
    } else {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        flock(file, LOCK_EX);
        close(file);
    }
}
"""


@pytest.fixture(scope="module")
def waiting_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the fake library with this function."""
    before = fakes.compile._SCENARIO
    text = before.read_text()
    start, end = text.index("static void log_call"), text.index('/* Whether "kind.function"')
    source = tmp_path_factory.mktemp("source") / "scenario.c"
    source.write_text(text[:start] + WAITS + text[end:])
    (source.parent / "scenario.h").write_text((before.parent / "scenario.h").read_text())
    fakes.compile._SCENARIO = source
    try:
        yield build_fake_nvml(tmp_path_factory.mktemp("library"))
    finally:
        fakes.compile._SCENARIO = before


@contextmanager
def full_log(path: Path) -> Iterator[None]:
    """Keep a socket whose program reads nothing, as of a log that was stopped."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        yield
    path.unlink()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    path.unlink()


CASES = {
    "hidden lock": (locked, {"FAKE_HIDDEN": "1"}, UNIT),
    "log": (full_log, {}, ()),
    "lock": (locked, {}, UNIT),
}


@needs_root
def test_a_library_that_waits_for_another_program_is_no_fault_of_its_driver(
    tmp_path: Path, waiting_library: Path, campaign: Callable[[int], int]
) -> None:
    """Not even where the kernel shows nothing of the reader. Before, the second such call was a hang, hard."""
    for name in list(CASES)[: campaign(len(CASES))]:
        happens, more, within = CASES[name]
        directory = tmp_path / name
        directory.mkdir()
        path = directory / "other"
        environment = {"NODEVET_FAKE_NVML_LOG": str(path), "FAKE_WAIT": name.rpartition(" ")[2], **more}
        node = GpuNode(directory, waiting_library, deadline_seconds=1.0, environment=environment, within=within)
        with node, ExitStack() as cleanup:
            node.wait_for_verdict("ok", 30.0)
            cleanup.enter_context(happens(path))
            until = time.monotonic() + 14.0
            while time.monotonic() < until:
                assert not [entry["message"] for entry in node.status()["findings"] if entry["outcome"] == "fail"]
                time.sleep(0.5)
            assert node.status()["verdict"] == "unknown"
