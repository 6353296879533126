"""Causes of a hang or crash that another program brought into a reader: real agents."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fakes import more_waits
from fakes.gpu_node import GpuNode
from fakes.waiting_library import library, waiting_node
from test_library_waits import never_fails

HANDED = r"""
#include <sys/mman.h>
static int handed(const char *path) /* a descriptor that a daemon hands over (unix(7), SCM_RIGHTS) */
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int line = connected(path, SOCK_STREAM), found = -1;
    if (line >= 0 && recvmsg(line, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&found, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof found);
    return found;
}
"""
CALLS = r"""
    if (!strcmp(how, "ring")) { /* a request in memory that a daemon handed over, and a busy wait for the answer */
        volatile int *ring = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, handed(other), 0);
        ring[0] = 1;
        while (!ring[1]) sched_yield();
    }
    if (!strcmp(how, "doorbell")) { /* the bell that a daemon rings when the answer is there */
        unsigned long long count;
        if (read(handed(other), &count, sizeof count) < 0) return;
    }
"""

PROFILER = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *samples(void *none) /* it looks at the first thread, and fails at its stack */
{
    char path[64], text[64];
    (void)none;
    for (;;) {
        usleep(2000);
        if (access(TRIGGER, F_OK)) continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", getpid());
        FILE *file = fopen(path, "r");
        if (!file) continue;
        char *line = fgets(text, sizeof text, file);
        fclose(file);
        if (line && (!strncmp(text, "35 ", 3) || !strncmp(text, "230 ", 4))) *(volatile int *)0 = 1;
    }
}
__attribute__((constructor)) static void start(void) /* in a collector: the agent itself may sleep too */
{
    char words[4096];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t size = file ? fread(words, 1, sizeof words, file) : 0;
    pthread_t thread;
    if (file) fclose(file);
    if (memmem(words, size, "reader_main", 11)) pthread_create(&thread, NULL, samples, NULL);
}
"""


@contextmanager
def daemon(path: Path, made: Callable[[], int]) -> Iterator[str]:
    """Keep a daemon that hands what it *made* to each client, and never answers."""
    stop = threading.Event()
    with ExitStack() as kept, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(50)
        server.settimeout(0.2)

        def serve() -> None:
            while not stop.is_set():
                try:
                    line, _ = server.accept()
                except TimeoutError:
                    continue
                kept.enter_context(line)
                descriptor = made()
                kept.callback(os.close, descriptor)
                socket.send_fds(line, [b"x"], [descriptor])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            stop.set()
            thread.join()


def memory() -> int:
    """Return a page of memory that has no name in a file system."""
    descriptor = os.memfd_create("ring")
    os.truncate(descriptor, 4096)
    return descriptor


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the fake library that waits, with the waits of this file too."""
    before = more_waits.FUNCTIONS, more_waits.CALLS
    more_waits.FUNCTIONS, more_waits.CALLS = before[0] + HANDED, before[1] + CALLS
    try:
        with library(tmp_path_factory.mktemp("waiting")) as built:
            yield built
    finally:
        more_waits.FUNCTIONS, more_waits.CALLS = before


def profiled(place: Path) -> tuple[str, Path]:
    """Return a Python whose site-packages load a profiler into every program, and the file at which it crashes."""
    trigger, built = place / "profiler.trigger", place / "profiler.so"
    (place / "profiler.c").write_text(PROFILER)
    compiler = ["gcc", "-shared", "-fPIC", "-O1", f'-DTRIGGER="{trigger}"', "-o", str(built)]
    subprocess.run([*compiler, str(place / "profiler.c"), "-lpthread"], check=True)
    packages = place / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (place / "venv" / "bin").mkdir()
    python = place / "venv" / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (place / "venv" / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "a_nodevet.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (packages / "z_profiler.pth").write_text("import start_profiler\n")
    (packages / "start_profiler.py").write_text(f"import ctypes\nctypes.CDLL({str(built)!r})\n")
    return str(python), trigger


def of_another_driver(root: Path) -> str:
    """Return the device node of a management controller's screen, which does not open."""
    board, driver, names = (root / "sys" / name for name in ("devices/pci0000:00/0000:02:00.0", "drivers/ast", "class"))
    for folder in (root / "dev" / "dri", board / "drm" / "card0", driver, names / "drm"):
        folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / "dev" / "dri" / "card0")
    (board / "driver").symlink_to(driver)
    (board / "drm" / "card0" / "device").symlink_to(board)
    (names / "drm" / "card0").symlink_to(board / "drm" / "card0")
    return str(root / "dev" / "dri" / "card0")


HANDED_OVER: dict[str, Callable[[], int]] = {"doorbell": lambda: os.eventfd(0), "ring": memory}


def test_a_counter_or_memory_that_a_daemon_handed_over_leads_to_the_daemon(
    tmp_path: Path, waiting: Path, campaign: Callable[[int], int]
) -> None:
    """A library reads an eventfd, or waits busily in a memfd, for a daemon that never answers; before, hard."""
    for how in list(HANDED_OVER)[: campaign(len(HANDED_OVER))]:
        (tmp_path / how).mkdir()
        with daemon(tmp_path / how / "other", HANDED_OVER[how]) as other:
            node, trigger = waiting_node(tmp_path / how, waiting, how, other)
            with node:
                node.wait_for_verdict("ok", 30.0)
                trigger.touch()
                never_fails(node, 14.0)


def test_a_profiler_in_every_python_and_a_screen_are_no_driver_of_a_gpu(
    tmp_path: Path, fake_nvml_library: Path, waiting: Path, campaign: Callable[[int], int]
) -> None:
    """The profiler crashes in a thread of its own during a call; the node of the screen does not open. Before, hard."""
    for number in range(campaign(2)):
        place = tmp_path / str(number)
        place.mkdir()
        if number:
            node, trigger = waiting_node(place, waiting, "open", str(place / "root" / "dev" / "dri" / "card0"))
            of_another_driver(place / "root")
        else:
            node = GpuNode(place, fake_nvml_library)
            node.python, trigger = profiled(place)
            node.machine.delay("nvmlDeviceGetTemperatureV", 300, 3)
        with node:
            node.wait_for_verdict("ok", 30.0)
            trigger.touch()
            never_fails(node, 12.0)
