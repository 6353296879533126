"""The fake NVML library with a function for the log of its calls that waits in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fakes.compile
from fakes.nvml.build import build_fake_nvml

WAITS = r"""
#include <pthread.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
static int ends[2];
static void *writes(void *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) { dprintf(file, "line\n"); close(file); }
    return NULL;
}
static void driver(void) /* a device node that does not answer: the driver hangs */
{
    char byte;
    int device = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (read(device, &byte, 1) < 0) pause();
}
static void *asks_driver(void *none) { (void)none; driver(); if (write(ends[1], "x", 1) < 0) {} return NULL; }
static int connected(const char *path, int kind)
{
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    int line = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
    strncpy(there.sun_path, path, sizeof there.sun_path - 1);
    if (connect(line, (struct sockaddr *)&there, sizeof there)) { close(line); return -1; }
    return line;
}
static void log_call(const char *function, int slot)
{
    const char *path = getenv(scenario_log_variable), *how = getenv("FAKE_WAIT"), *other = getenv("FAKE_OTHER");
    char byte;
    if (!path || !how || slot != 3) return;
    if (strcmp(function, "nvmlDeviceGetTemperatureV") || access(path, F_OK)) return;
    if (!strcmp(how, "thread-on-disk")) {
        pthread_t thread;
        pthread_create(&thread, NULL, writes, (void *)other);
        pthread_join(thread, NULL);
    }
    if (!strcmp(how, "worker")) {
        pthread_t thread;
        if (pipe2(ends, O_CLOEXEC)) return;
        pthread_create(&thread, NULL, asks_driver, NULL);
        if (read(ends[0], &byte, 1) < 0) return;
    }
    if (!strcmp(how, "popen")) { /* a helper of the library asks the driver, its output is read */
        FILE *output = popen("exec head -c 1 /dev/ptmx", "r");
        int c = fgetc(output); (void)c;
        pclose(output);
    }
    if (!strcmp(how, "open")) {
        int file = open(other, O_RDONLY | O_CLOEXEC);
        close(file);
    }
    if (!strcmp(how, "log")) { /* a line for the log of the system, whose program is stopped */
        int line = connected(other, SOCK_DGRAM);
        for (int number = 0; line >= 0 && number < 1000; number++)
            if (send(line, "x", 1, MSG_NOSIGNAL) < 0) break;
        close(line);
    }
    if (!strcmp(how, "hidden-lock")) prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(how, "lock") || !strcmp(how, "hidden-lock")) {
        int file = open(other, O_RDONLY | O_CLOEXEC);
        flock(file, LOCK_EX);
        close(file);
    }
    if (!strcmp(how, "asks")) {
        int line = connected(other, SOCK_STREAM);
        if (line >= 0 && recv(line, &byte, 1, 0) < 0) return;
        close(line);
    }
}
"""


@contextmanager
def library(place: Path) -> Iterator[Path]:
    """Build the fake library with this function."""
    before = fakes.compile._SCENARIO
    text = before.read_text()
    start, end = text.index("static void log_call"), text.index('/* Whether "kind.function"')
    source = place / "source" / "scenario.c"
    source.parent.mkdir(parents=True)
    source.write_text(text[:start] + WAITS + text[end:])
    (source.parent / "scenario.h").write_text((before.parent / "scenario.h").read_text())
    fakes.compile._SCENARIO = source
    (place / "library").mkdir()
    try:
        yield build_fake_nvml(place / "library")
    finally:
        fakes.compile._SCENARIO = before
