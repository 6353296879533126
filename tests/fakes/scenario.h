/* What the fake driver libraries share: a machine described by a text file, and the faults of its calls.
 *
 * A line of the file is "key value". A key stands for all devices ("temperature"), for one slot ("temperature.3"),
 * or for a part or peer of a slot ("link_state.3.5"); the narrower key wins. The file is read again whenever it was
 * replaced, so a test changes the machine while a program runs on it. tests/fakes/machine.py writes it.
 *
 * A device lives in a slot (0 to 15) and keeps its identity there; what a library calls its index counts only the
 * present ones, as on real machines, where a device that fell off the bus shifts the others after a reload.
 */
#ifndef NODEVET_FAKE_SCENARIO_H
#define NODEVET_FAKE_SCENARIO_H

#include <stddef.h>

enum { SLOTS = 16, SYSTEM = -1 };

struct event { long sequence; int slot; unsigned long long type, data; };

/* Each library says which environment variable names its scenario, and which one the log of its calls. */
extern const char *const scenario_variable, *const scenario_log_variable;

/* The value of "name.slot.part", else of "name.slot", else of "name", else otherwise. */
long long number_of(const char *name, int slot, int part, long long otherwise);
long long number(const char *name, int slot, long long otherwise);
void text_of(const char *name, int slot, int part, const char *otherwise, char *out, size_t size);

/* Whether a device is in the slot. */
int present(int slot);
int count_present(void);

/* The slot of the device at an index among the present ones, or -1. */
int slot_at(unsigned int index);

/* Enter a call: log it, read the scenario again, live through its delay, hang or abort. Return the code that a test
 * injected, or 0. */
long long enter_call(const char *function, int slot);

/* The newest number of the events that happened, and the first event after a number. */
long newest_event(void);
int next_event(long after, struct event *found);

#endif
