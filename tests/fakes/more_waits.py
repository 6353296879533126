"""Waits of the fake library beside threads, helpers and daemons: C functions, and the calls of ``waiting_library``."""

from __future__ import annotations

NODES = 64
"""Device nodes that the thread ``samples`` reads in turn."""

FUNCTIONS = r"""
#include <sys/eventfd.h>
#include <sys/inotify.h>
static int answers(const char *path, int milliseconds) /* a request over a connection of its own */
{
    char byte;
    int line = connected(path, SOCK_STREAM);
    struct pollfd wanted = {.fd = line, .events = POLLIN};
    if (line < 0) return 0;
    int found = poll(&wanted, 1, milliseconds) > 0 && recv(line, &byte, 1, 0) == 1;
    close(line);
    return found;
}
static void *renews(void *path) /* a thread that asks a daemon for news, each time over another connection */
{
    for (;;)
        if (!answers(path, 5000)) nanosleep(&(struct timespec){0, 100000000}, NULL);
    return NULL;
}
static void *alternates(void *path) /* a thread that listens to two daemons in turn */
{
    struct pollfd lines[2] = {{.events = POLLIN}, {.events = POLLIN}};
    lines[0].fd = connected(path, SOCK_STREAM);
    lines[1].fd = connected(path, SOCK_STREAM);
    for (int number = 0;; number++) poll(&lines[number % 2], 1, 250);
    return NULL;
}
static void *samples(void *none) /* a thread that reads many device nodes in turn, each for a tenth of a second */
{
    struct pollfd nodes[NODES];
    char path[300];
    (void)none;
    for (int number = 0; number < NODES; number++) {
        snprintf(path, sizeof path, "%s%d", getenv("FAKE_DEVICE"), number);
        nodes[number] = (struct pollfd){.fd = open(path, O_RDWR | O_CLOEXEC), .events = POLLIN};
    }
    for (int number = 0;; number = (number + 1) % NODES) poll(&nodes[number], 1, 100);
    return NULL;
}
static void *listens_to_driver(void *device)
{
    struct pollfd wanted = {.fd = open(device, O_RDWR | O_CLOEXEC), .events = POLLIN};
    poll(&wanted, 1, -1);
    return NULL;
}
static void *spins(void *none) { (void)none; for (;;) turned++; return NULL; }
static void *locks_itself(void *none)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)none;
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&lock);
    return NULL;
}
__attribute__((constructor)) static void more_background(void)
{
    char *how = getenv("FAKE_MORE"), *other = getenv("FAKE_OTHER");
    pthread_t thread;
    if (!how) return;
    if (!strcmp(how, "renews")) pthread_create(&thread, NULL, renews, other);
    if (!strcmp(how, "alternates")) pthread_create(&thread, NULL, alternates, other);
    if (!strcmp(how, "samples")) pthread_create(&thread, NULL, samples, NULL);
}
static int is_there(const char *path)
{
    int line = connected(path, SOCK_STREAM);
    if (line >= 0) close(line);
    return line >= 0;
}
""".replace("NODES", str(NODES))

CALLS = r"""
    if (!strcmp(how, "timed-wait")) { /* std::condition_variable::wait_for between two tries of an absent daemon */
        struct timespec until;
        pthread_mutex_lock(&answered);
        while (!is_there(other)) {
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
            pthread_cond_timedwait(&answer, &answered, &until);
        }
        pthread_mutex_unlock(&answered);
    }
    if (!strcmp(how, "timed-event")) { /* the same in a loop that another thread may wake */
        struct pollfd woken = {.fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN};
        while (!is_there(other)) poll(&woken, 1, 1000);
        close(woken.fd);
    }
    if (!strcmp(how, "nested-epoll")) { /* the loop of a client of a daemon inside of another loop */
        int line = connected(other, SOCK_STREAM), inner = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd wanted = {.fd = inner, .events = POLLIN};
        if (!epoll_ctl(inner, EPOLL_CTL_ADD, line, &event)) poll(&wanted, 1, 300000);
        close(inner);
        close(line);
    }
    if (!strcmp(how, "listens-then-asks")) { /* it starts a thread for events of boards, and asks a daemon */
        pthread_t thread;
        pthread_create(&thread, NULL, listens_to_driver, getenv("FAKE_DEVICE"));
        answers(other, -1);
    }
    if (!strcmp(how, "helper-input")) { /* a helper whose standard input is the connection to a daemon */
        int line = connected(other, SOCK_STREAM);
        pid_t child = fork();
        if (!child) {
            dup2(line, 0);
            execlp("head", "head", "-c", "1", NULL);
            _exit(1);
        }
        close(line);
        waitpid(child, NULL, 0);
    }
    if (!strcmp(how, "poll-inotify")) { /* a device, and whether its node is removed */
        struct pollfd wanted[2] = {{.events = POLLIN}, {.events = POLLIN}};
        wanted[0].fd = open(getenv("FAKE_DEVICE"), O_RDWR | O_CLOEXEC);
        wanted[1].fd = inotify_init1(IN_CLOEXEC);
        inotify_add_watch(wanted[1].fd, getenv("FAKE_DEVICE"), IN_DELETE_SELF);
        poll(wanted, 2, -1);
    }
    if (!strcmp(how, "pipeline")) { /* one helper hangs in the driver, and another one writes to it */
        if (system("yes | sh -c 'exec head -c 1 /proc/self/fd/3 3<>\"$FAKE_DEVICE\" >/dev/null'")) return;
    }
    if (!strcmp(how, "pair-computes") || !strcmp(how, "pair-deadlock")) { /* a thread of the library answers */
        pthread_t thread;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return;
        pthread_create(&thread, NULL, strcmp(how, "pair-deadlock") ? spins : locks_itself, NULL);
        if (read(ends[0], &byte, 1) < 0) return;
    }
    if (!strcmp(how, "timed-join")) { /* a thread of the library asks the driver; its end is asked for each second */
        pthread_t thread;
        struct timespec until;
        if (pipe2(ends, O_CLOEXEC)) return;
        pthread_create(&thread, NULL, asks_driver, NULL);
        do {
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
        } while (pthread_timedjoin_np(thread, NULL, &until));
    }
"""
