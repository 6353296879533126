"""The fake NVML library with a function for the log of its calls that waits in many ways."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fakes.compile
from fakes import more_waits
from fakes.gpu_node import GpuNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.build import build_fake_nvml
from fakes.nvml.scenario import FakeNvml

WAITS = r"""
#include <errno.h>
#include <pty.h>
#include <sched.h>
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
#include <linux/netlink.h>
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
    int device = open(getenv("FAKE_DEVICE"), O_RDWR | O_CLOEXEC);
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
static pthread_mutex_t answered = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answer = PTHREAD_COND_INITIALIZER;
static int client = -1;
static void *listens(void *path) /* the thread of a client that takes each answer of a daemon */
{
    struct pollfd wanted = {.fd = client = connected(path, SOCK_STREAM), .events = POLLIN};
    while (poll(&wanted, 1, -1) > 0) pthread_cond_broadcast(&answer);
    return NULL;
}
static void *turns(void *path) /* a thread that waits for its daemon or for events, each time for another while */
{
    struct pollfd wanted = {.events = POLLIN};
    wanted.fd = strcmp(path, "device") ? connected(path, SOCK_STREAM) : open(getenv("FAKE_DEVICE"), O_RDWR | O_CLOEXEC);
    for (int number = 0;; number++) poll(&wanted, 1, 200 + number % 100);
    return NULL;
}
static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static void *pooled(void *none) { pthread_mutex_lock(&pool); for (;;) pthread_cond_wait(&work, &pool); return none; }
static volatile long turned;
static void *computes(void *processor) /* a thread of the library that computes on one processor, as of telemetry */
{
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(atoi(processor), &only);
    sched_setaffinity(0, sizeof only, &only);
    for (;;) turned++;
    return NULL;
}
__attribute__((constructor)) static void background(void)
{
    const char *how = getenv("FAKE_BACKGROUND");
    pthread_t thread;
    if (!how) return;
    if (!strcmp(how, "pool")) pthread_create(&thread, NULL, pooled, NULL);
    else if (!strncmp(how, "client ", 7)) pthread_create(&thread, NULL, listens, (void *)(how + 7));
    else if (!strncmp(how, "computes ", 9)) pthread_create(&thread, NULL, computes, (void *)(how + 9));
    else pthread_create(&thread, NULL, turns, (void *)how);
}
static void *rests_at(void *line) { char byte; if (read(*(int *)line, &byte, 1) < 0) {} return NULL; }
static void *tries(void *path)
{
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(there.sun_path, path, sizeof there.sun_path - 1);
    while (connect(line, (struct sockaddr *)&there, sizeof there)) nanosleep(&(struct timespec){0, 200000000}, NULL);
    close(line);
    return NULL;
}
static void log_call(const char *function, int slot)
{
    const char *path = getenv(scenario_log_variable), *how = getenv("FAKE_WAIT"), *other = getenv("FAKE_OTHER");
    char byte;
    if (!path || !how || slot != 3) return;
    if (strcmp(function, "nvmlDeviceGetTemperatureV") || access(path, F_OK)) return;
    if (!strcmp(how, "driver")) driver();
    if (!strcmp(how, "driver-poll")) {
        struct pollfd wanted = {.fd = open(getenv("FAKE_DEVICE"), O_RDWR | O_CLOEXEC), .events = POLLIN};
        poll(&wanted, 1, -1);
    }
    if (!strcmp(how, "pair")) { /* a thread of the library asks the driver, over a socket */
        pthread_t thread;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return;
        pthread_create(&thread, NULL, asks_driver, NULL);
        if (read(ends[0], &byte, 1) < 0) return;
    }
    if (!strcmp(how, "system")) { /* a helper of the library asks the driver */
        if (system("exec head -c 1 <>\"$FAKE_DEVICE\" >/dev/null")) return;
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
        FILE *output = popen("exec head -c 1 <>\"$FAKE_DEVICE\"", "r");
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
    if (!strcmp(how, "helper-polled")) { /* its helper asks a daemon; it looks for the end of it, as timeouts need */
        pid_t child = fork();
        if (!child) {
            int line = connected(other, SOCK_STREAM);
            if (line >= 0 && recv(line, &byte, 1, 0) < 0) _exit(1);
            _exit(0);
        }
        while (!waitpid(child, NULL, WNOHANG)) nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    if (!strcmp(how, "helper-tries")) {
        pid_t child = fork();
        if (!child) { tries((void *)other); _exit(0); }
        waitpid(child, NULL, 0);
    }
    if (!strcmp(how, "thread-tries")) {
        pthread_t thread;
        pthread_create(&thread, NULL, tries, (void *)other);
        pthread_join(thread, NULL);
    }
    if (!strcmp(how, "trylock")) { /* another program holds the lock, and is asked again and again */
        int file = open(other, O_RDONLY | O_CLOEXEC);
        while (flock(file, LOCK_EX | LOCK_NB)) nanosleep(&(struct timespec){0, 50000000}, NULL);
        close(file);
    }
    if (!strcmp(how, "complains")) { /* one line for the log of the system, then it waits for a register of its board */
        int line = connected(other, SOCK_DGRAM);
        if (send(line, "x", 1, MSG_NOSIGNAL) < 0) return;
        for (;;) nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    if (!strcmp(how, "join")) { /* a thread of the library asks the driver */
        pthread_t thread;
        if (pipe2(ends, O_CLOEXEC)) return;
        pthread_create(&thread, NULL, asks_driver, NULL);
        pthread_join(thread, NULL);
    }
    if (!strcmp(how, "poll-both")) { /* a device, and the kernel's word that it was taken away (udev) */
        struct pollfd wanted[2] = {{.events = POLLIN}, {.events = POLLIN}};
        struct sockaddr_nl here = {.nl_family = AF_NETLINK, .nl_groups = 2};
        wanted[0].fd = open(getenv("FAKE_DEVICE"), O_RDWR | O_CLOEXEC);
        wanted[1].fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
        if (bind(wanted[1].fd, (struct sockaddr *)&here, sizeof here)) return;
        poll(wanted, 2, -1);
    }
    if (!strcmp(how, "node")) { /* a device node elsewhere than in /dev */
        char room[8192];
        int device = open(other, O_RDONLY | O_CLOEXEC);
        lseek(device, 0, SEEK_END);
        while (read(device, room, sizeof room) > 0) continue;
    }
    if (!strcmp(how, "daemonized")) { /* its helper became a daemon, and the pipe to it has two descriptors here */
        if (pipe2(ends, O_CLOEXEC)) return;
        pid_t child = fork();
        if (!child) {
            if (fork()) _exit(0);
            setsid();
            close(ends[0]);
            int line = connected(other, SOCK_STREAM);
            if (line >= 0 && recv(line, &byte, 1, 0) < 0) _exit(1);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        close(ends[1]);
        FILE *output = fdopen(dup(ends[0]), "r");
        int c = fgetc(output); (void)c;
        fclose(output);
    }
    if (!strcmp(how, "computes")) { /* so many seconds of the processor, in each round */
        struct timespec used, begun;
        double wanted = atof(other);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
        do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        while ((used.tv_sec - begun.tv_sec) + (used.tv_nsec - begun.tv_nsec) / 1e9 < wanted);
    }
    if (!strcmp(how, "marked")) { /* it tells that it begins, and the driver does not answer */
        char began[300];
        snprintf(began, sizeof began, "%s.%d", other, getpid());
        close(open(began, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
        nanosleep(&(struct timespec){0, 150000000}, NULL);
        driver();
    }
    if (!strcmp(how, "reopens")) { /* it looks at a file before it opens it in earnest */
        char again[64];
        int file = open(other, O_PATH | O_CLOEXEC);
        snprintf(again, sizeof again, "/proc/self/fd/%d", file);
        close(open(again, O_RDONLY | O_CLOEXEC));
        close(file);
    }
    if (!strcmp(how, "terminal")) { /* a helper asks a daemon, and its output comes over a terminal: line by line */
        int master;
        pid_t child = forkpty(&master, NULL, NULL, NULL);
        if (!child) {
            int line = connected(other, SOCK_STREAM);
            if (line >= 0 && recv(line, &byte, 1, 0) < 0) _exit(1);
            _exit(0);
        }
        if (read(master, &byte, 1) < 0) return;
        waitpid(child, NULL, 0);
    }
    if (!strcmp(how, "client")) { /* a request; another thread takes the answer */
        pthread_mutex_lock(&answered);
        if (send(client, "x", 1, MSG_NOSIGNAL) == 1) pthread_cond_wait(&answer, &answered);
        pthread_mutex_unlock(&answered);
    }
    if (!strcmp(how, "lazy-pool")) { /* two workers start with this call; one rests at its socket */
        pthread_t thread, rests;
        int work[2];
        if (pipe2(ends, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, work)) return;
        pthread_create(&rests, NULL, rests_at, &work[0]);
        pthread_create(&thread, NULL, asks_driver, NULL);
        pthread_join(thread, NULL);
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


def _waits() -> str:
    """Return the C text of all waits."""
    start, end = WAITS.index("static void log_call"), WAITS.rindex("}")
    return WAITS[:start] + more_waits.FUNCTIONS + WAITS[start:end] + more_waits.CALLS + WAITS[end:]


@contextmanager
def library(place: Path) -> Iterator[Path]:
    """Build the fake library with this function."""
    before = fakes.compile._SCENARIO
    text = before.read_text()
    start, end = text.index("static void log_call"), text.index('/* Whether "kind.function"')
    source = place / "source" / "scenario.c"
    source.parent.mkdir(parents=True)
    source.write_text(text[:start] + _waits() + text[end:])
    (source.parent / "scenario.h").write_text((before.parent / "scenario.h").read_text())
    fakes.compile._SCENARIO = source
    (place / "library").mkdir()
    try:
        yield build_fake_nvml(place / "library")
    finally:
        fakes.compile._SCENARIO = before


def waiting_node(
    place: Path,
    built: Path,
    how: str,
    other: str,
    *,
    background: str = "",
    deadline_seconds: float = 1.0,
    within: tuple[str, ...] = (),
) -> tuple[GpuNode, Path]:
    """Return a node whose library waits as *how* says in a call of board 3 once the returned file exists.

    *other* names the file or program that it waits for, *background* what a thread of the library does all the time.
    Its device node, which never answers, lies below the root of the node.
    """
    root = write_tree(place / "root", dict(virtual_machine() | FakeNvml(place / "unused", built).host_files()))
    (root / "dev").mkdir(exist_ok=True)
    os.mkfifo(root / "dev" / "nvidia3")
    trigger = place / "trigger"
    environment = {
        "NODEVET_FAKE_NVML_LOG": str(trigger),
        "FAKE_WAIT": how,
        "FAKE_OTHER": other,
        "FAKE_DEVICE": str(root / "dev" / "nvidia3"),
    }
    if background:
        environment["FAKE_BACKGROUND"] = background
    node = GpuNode(
        place, built, root=str(root), deadline_seconds=deadline_seconds, environment=environment, within=within
    )
    return node, trigger
