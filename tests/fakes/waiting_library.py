"""The fake NVML library with a function for the log of its calls that waits in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fakes.compile
from fakes.nvml.build import build_fake_nvml

WAITS = r"""
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/wait.h>
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
    if (!strcmp(how, "driver")) driver();
    if (!strcmp(how, "driver-poll")) {
        struct pollfd wanted = {.fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), .events = POLLIN};
        poll(&wanted, 1, -1);
    }
    if (!strcmp(how, "pair")) { /* a thread of the library asks the driver, over a socket */
        pthread_t thread;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return;
        pthread_create(&thread, NULL, asks_driver, NULL);
        if (read(ends[0], &byte, 1) < 0) return;
    }
    if (!strcmp(how, "system")) { /* a helper of the library asks the driver */
        if (system("exec head -c 1 /dev/ptmx >/dev/null")) return;
    }
    if (!strcmp(how, "deadlock")) {
        pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        pthread_mutex_lock(&lock);
        pthread_mutex_lock(&lock);
    }
    if (!strcmp(how, "poll") || !strcmp(how, "epoll")) { /* as clients of SunRPC, D-Bus and SSSD do */
        int line = connected(other, SOCK_STREAM), queue = epoll_create1(EPOLL_CLOEXEC);
        struct pollfd wanted = {.fd = line, .events = POLLIN};
        struct epoll_event event = {.events = EPOLLIN};
        if (!strcmp(how, "poll")) poll(&wanted, 1, 300000);
        else if (!epoll_ctl(queue, EPOLL_CTL_ADD, line, &event)) epoll_wait(queue, &event, 1, 300000);
        close(line);
    }
    if (!strcmp(how, "helper-asks")) { /* a helper of the library asks a daemon */
        pid_t child = fork();
        if (!child) {
            int line = connected(other, SOCK_STREAM);
            if (line >= 0 && recv(line, &byte, 1, 0) < 0) _exit(1);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (!strcmp(how, "tries")) { /* the daemon takes no connection, and is asked again and again */
        struct sockaddr_un there = {.sun_family = AF_UNIX};
        int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        strncpy(there.sun_path, other, sizeof there.sun_path - 1);
        while (connect(line, (struct sockaddr *)&there, sizeof there))
            nanosleep(&(struct timespec){0, 200000000}, NULL);
        close(line);
    }
    if (!strcmp(how, "semaphore")) {
        int set = semget((key_t)strtol(other, NULL, 0), 1, 0);
        struct sembuf take = {0, -1, SEM_UNDO}, give = {0, 1, SEM_UNDO};
        if (set >= 0 && !semop(set, &take, 1)) semop(set, &give, 1);
    }
    if (!strcmp(how, "lock-then-work")) {
        int file = open(other, O_RDONLY | O_CLOEXEC);
        flock(file, LOCK_EX);
        close(file);
        nanosleep(&(struct timespec){0, 900000000}, NULL);
    }
    if (!strcmp(how, "work")) { /* 1.8 s of the processor: a slow call, but within its deadline of 2 s */
        struct timespec used;
        char began[300];
        snprintf(began, sizeof began, "%s.%d", other, getpid());
        if (access(began, F_OK)) {
            struct timespec begun;
            close(open(began, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
            do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
            while ((used.tv_sec - begun.tv_sec) * 1000 + (used.tv_nsec - begun.tv_nsec) / 1000000 < 1800);
        }
    }
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
