/* The scenario of a fake driver library: see scenario.h. */
#define _GNU_SOURCE
#include "scenario.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES = 4096, BUCKETS = 8192, EVENTS = 256 };

struct entry { char *key, *value; };

static struct {
    pthread_mutex_t lock;
    char *text;
    struct stat seen;
    int loaded, faults, entry_count, event_count;
    struct entry entries[ENTRIES];
    short bucket[BUCKETS];
    struct event events[EVENTS];
} scenario = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned hash(const char *key)
{
    unsigned value = 2166136261u;
    for (; *key; key++) value = (value ^ (unsigned char)*key) * 16777619u;
    return value % BUCKETS;
}

static const char *find(const char *key)
{
    for (unsigned at = hash(key); scenario.bucket[at]; at = (at + 1) % BUCKETS) {
        struct entry *entry = &scenario.entries[scenario.bucket[at] - 1];
        if (!strcmp(entry->key, key)) return entry->value;
    }
    return NULL;
}

static void insert(char *key, char *value)
{
    unsigned at = hash(key);
    static const char *fault_prefixes[] = {"hang.", "abort.", "error.", "delay_milliseconds"};
    for (; scenario.bucket[at]; at = (at + 1) % BUCKETS) {
        struct entry *entry = &scenario.entries[scenario.bucket[at] - 1];
        if (!strcmp(entry->key, key)) {
            entry->value = value;
            return;
        }
    }
    if (scenario.entry_count == ENTRIES) abort();
    scenario.entries[scenario.entry_count] = (struct entry){key, value};
    scenario.bucket[at] = (short)++scenario.entry_count;
    for (size_t i = 0; i < sizeof fault_prefixes / sizeof *fault_prefixes; i++)
        scenario.faults |= !strncmp(key, fault_prefixes[i], strlen(fault_prefixes[i]));
}

static void insert_event(const char *key, const char *value)
{
    struct event *event = &scenario.events[scenario.event_count % EVENTS];
    event->sequence = strtol(key + strlen("event."), NULL, 10);
    if (sscanf(value, "%d %lli %lli", &event->slot, (long long *)&event->type, (long long *)&event->data) == 3)
        scenario.event_count++;
}

static void parse(char *text)
{
    memset(scenario.bucket, 0, sizeof scenario.bucket);
    scenario.entry_count = scenario.event_count = scenario.faults = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *value = strchr(line, ' ');
        if (*line == '#' || !value) continue;
        *value++ = 0;
        if (!strncmp(line, "event.", strlen("event.")))
            insert_event(line, value);
        else
            insert(line, value);
    }
}

static void reload(void)
{
    const char *path = getenv(scenario_variable);
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (scenario.loaded && now.st_ino == scenario.seen.st_ino && now.st_size == scenario.seen.st_size &&
        now.st_mtim.tv_sec == scenario.seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == scenario.seen.st_mtim.tv_nsec)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    char *text = NULL;
    if (!fstat(file, &now) && (text = calloc(1, (size_t)now.st_size + 1)) && read(file, text, (size_t)now.st_size) >= 0) {
        free(scenario.text);
        scenario.text = text;
        scenario.seen = now;
        scenario.loaded = 1;
        parse(text);
    }
    close(file);
}

static const char *look(const char *name, int slot, int part)
{
    char key[128];
    const char *value = NULL;
    if (slot >= 0 && part >= 0) {
        snprintf(key, sizeof key, "%s.%d.%d", name, slot, part);
        value = find(key);
    }
    if (!value && slot >= 0) {
        snprintf(key, sizeof key, "%s.%d", name, slot);
        value = find(key);
    }
    return value ? value : find(name);
}

long long number_of(const char *name, int slot, int part, long long otherwise)
{
    pthread_mutex_lock(&scenario.lock);
    const char *value = look(name, slot, part);
    long long found = value ? (long long)strtoull(value, NULL, 0) : otherwise; /* takes a sign and 64 bits */
    pthread_mutex_unlock(&scenario.lock);
    return found;
}

long long number(const char *name, int slot, long long otherwise)
{
    return number_of(name, slot, -1, otherwise);
}

void text_of(const char *name, int slot, int part, const char *otherwise, char *out, size_t size)
{
    pthread_mutex_lock(&scenario.lock);
    const char *value = look(name, slot, part);
    snprintf(out, size, "%s", value ? value : otherwise);
    pthread_mutex_unlock(&scenario.lock);
}

int present(int slot)
{
    return number("present", slot, slot < number("count", -1, 8)) != 0;
}

int count_present(void)
{
    int count = 0;
    for (int slot = 0; slot < SLOTS; slot++) count += present(slot);
    return count;
}

int slot_at(unsigned int index)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (present(slot) && index-- == 0) return slot;
    return -1;
}

static void log_call(const char *function, int slot)
{
    const char *path = getenv(scenario_log_variable);
    if (!path) return;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    dprintf(file, "%s %d\n", function, slot);
    close(file);
}

/* Whether "kind.function", "kind.function.slot", "kind.slot" or "kind.all" is set, and to what. */
static int fault(const char *kind, const char *function, int slot, long long *value)
{
    char key[160];
    const char *found = NULL;
    snprintf(key, sizeof key, "%s.%s.%d", kind, function, slot);
    if (slot >= 0) found = find(key);
    snprintf(key, sizeof key, "%s.%s", kind, function);
    if (!found) found = find(key);
    snprintf(key, sizeof key, "%s.%d", kind, slot);
    if (!found && slot >= 0) found = find(key);
    snprintf(key, sizeof key, "%s.all", kind);
    if (!found) found = find(key);
    if (found) *value = strtoll(found, NULL, 0);
    return found && *value;
}

long long enter_call(const char *function, int slot)
{
    long long delay = 0, hang = 0, crash = 0, error = 0;
    log_call(function, slot);
    pthread_mutex_lock(&scenario.lock);
    reload();
    if (scenario.faults) {
        fault("delay_milliseconds", function, slot, &delay);
        fault("hang", function, slot, &hang);
        fault("abort", function, slot, &crash);
        fault("error", function, slot, &error);
    }
    pthread_mutex_unlock(&scenario.lock);
    if (delay) nanosleep(&(struct timespec){delay / 1000, delay % 1000 * 1000000}, NULL);
    while (hang) pause();
    if (crash) abort();
    return error;
}

long newest_event(void)
{
    long newest = 0;
    pthread_mutex_lock(&scenario.lock);
    reload();
    for (int i = 0; i < scenario.event_count && i < EVENTS; i++)
        if (scenario.events[i].sequence > newest) newest = scenario.events[i].sequence;
    pthread_mutex_unlock(&scenario.lock);
    return newest;
}

int next_event(long after, struct event *found)
{
    int taken = 0;
    pthread_mutex_lock(&scenario.lock);
    reload();
    for (int i = 0; i < scenario.event_count && i < EVENTS && !taken; i++) {
        if (scenario.events[i].sequence <= after) continue;
        *found = scenario.events[i];
        taken = 1;
    }
    pthread_mutex_unlock(&scenario.lock);
    return taken;
}
