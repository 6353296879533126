/* A libnvidia-ml.so.1 that plays a machine described by a text file.
 *
 * The file is named by NODEVET_FAKE_NVML; scenario.py documents the keys and ../scenario.h their grammar. Without a
 * file the machine is a healthy node of eight H100 behind NVSwitch. NODEVET_FAKE_NVML_LOG names a file that receives
 * one line per call: function, slot.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#define _GNU_SOURCE
#include "../scenario.h"

#include <nvml.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

const char *const scenario_variable = "NODEVET_FAKE_NVML", *const scenario_log_variable = "NODEVET_FAKE_NVML_LOG";

static int initialised; /* nvmlInit and nvmlShutdown are counted */
static char slots[SLOTS]; /* a handle is the address of its slot */

static nvmlReturn_t answer(const char *name, int slot, const char *otherwise, char *out, unsigned int size)
{
    char value[256];
    text_of(name, slot, -1, otherwise, value, sizeof value);
    if (strlen(value) + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, value, strlen(value) + 1);
    return NVML_SUCCESS;
}

/* ---- Entering a call ----------------------------------------------------------------------------------- */

static nvmlReturn_t enter(const char *function, int slot, int needs_init)
{
    long long error = enter_call(function, slot);
    if (needs_init && !initialised) return NVML_ERROR_UNINITIALIZED;
    if (error) return (nvmlReturn_t)error;
    return slot >= 0 && !present(slot) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static int slot_of(nvmlDevice_t device)
{
    char *handle = (char *)device;
    return handle >= slots && handle < slots + SLOTS ? (int)(handle - slots) : -2;
}

#define ENTER(slot, needs_init)                                             \
    do {                                                                    \
        nvmlReturn_t entered = enter(__func__, slot, needs_init);           \
        if (entered) return entered;                                        \
    } while (0)

#define ENTER_SYSTEM() ENTER(SYSTEM, 1)

#define ENTER_DEVICE()                                                      \
    int slot = slot_of(device);                                             \
    if (slot < 0) return NVML_ERROR_INVALID_ARGUMENT;                       \
    ENTER(slot, 1)

#define ENTER_LINK()                                                        \
    ENTER_DEVICE();                                                         \
    if (!links(slot)) return NVML_ERROR_NOT_SUPPORTED;                      \
    if ((long long)link >= links(slot)) return NVML_ERROR_INVALID_ARGUMENT

static long long links(int slot) { return number("links", slot, 18); }

static long long link_state(int slot, unsigned int link) { return number_of("link_state", slot, (int)link, 1); }

/* ---- Library ------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    ENTER(SYSTEM, 0);
    initialised++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    ENTER(SYSTEM, 0);
    initialised++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER_SYSTEM();
    initialised--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static __thread char text[32];
    snprintf(text, sizeof text, "NVML code %d", (int)result);
    return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER_SYSTEM();
    return answer("driver_version", -1, "590.48.01", version, length);
}

/* Answers without nvmlInit: so the library can name its own version when the driver refuses it. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER(SYSTEM, 0);
    return answer("nvml_version", -1, "13.590.48.01", version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER_SYSTEM();
    *version = (int)number("cuda_version", -1, 13010);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER_SYSTEM();
    snprintf(name, length, "process-%u", pid);
    return NVML_SUCCESS;
}

/* ---- Inventory ----------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER_SYSTEM();
    *count = (unsigned)count_present();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    int slot = slot_at(index);
    ENTER(slot, 1);
    slot = slot_at(index);
    if (slot < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)&slots[slot];
    return NVML_SUCCESS;
}

static void uuid_of(int slot, char *out, size_t size)
{
    char made[64];
    snprintf(made, sizeof made, "GPU-5eed%04x-c0de-4abc-8def-%012x", slot, 0x100 + slot);
    text_of("uuid", slot, -1, made, out, size);
}

static void pci_of(int slot, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned)number("pci_domain", slot, 0);
    pci->bus = (unsigned)number("pci_bus", slot, 0x10 * (slot + 1));
    pci->pciDeviceId = (unsigned)number("pci_device_id", slot, 0x233010de);
    pci->pciSubSystemId = (unsigned)number("pci_subsystem_id", slot, 0x16c110de);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", pci->domain, pci->bus & 0xff);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", pci->domain & 0xffff, pci->bus & 0xff);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER_SYSTEM();
    for (int slot = 0; slot < SLOTS; slot++) {
        char own[96];
        uuid_of(slot, own, sizeof own);
        if (!present(slot) || strcmp(own, uuid)) continue;
        *device = (nvmlDevice_t)&slots[slot];
        return enter(__func__, slot, 1);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    unsigned domain, bus;
    ENTER_SYSTEM();
    if (sscanf(address, "%x:%x:", &domain, &bus) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    for (int slot = 0; slot < SLOTS; slot++) {
        nvmlPciInfo_t pci;
        pci_of(slot, &pci);
        if (!present(slot) || pci.domain != domain || pci.bus != bus) continue;
        *device = (nvmlDevice_t)&slots[slot];
        return enter(__func__, slot, 1);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *asked, nvmlEnableState_t *state)
{
    ENTER_SYSTEM();
    for (int slot = 0; slot < SLOTS; slot++) {
        nvmlPciInfo_t pci;
        pci_of(slot, &pci);
        if (pci.domain != asked->domain || pci.bus != asked->bus || asked->device) continue;
        *state = number("drained", slot, 0) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER_DEVICE();
    *index = 0;
    for (int other = 0; other < slot; other++) *index += (unsigned)present(other);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_DEVICE();
    return answer("name", slot, "NVIDIA H100 80GB HBM3", name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char own[96];
    ENTER_DEVICE();
    uuid_of(slot, own, sizeof own);
    snprintf(uuid, length, "%s", own);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    char made[32];
    ENTER_DEVICE();
    snprintf(made, sizeof made, "17654230%05d", 100 + slot);
    return answer("serial", slot, made, serial, length);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE();
    pci_of(slot, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    ENTER_DEVICE();
    return answer("vbios", slot, "96.00.AF.00.01", version, length);
}

nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    ENTER_DEVICE();
    return answer("inforom", slot, "G520.0200.00.05", version, length);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part, unsigned int length)
{
    ENTER_DEVICE();
    return answer("board_part_number", slot, "692-2G520-0200-000", part, length);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ENTER_DEVICE();
    return answer("gsp_firmware", slot, "590.48.01", version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture)
{
    ENTER_DEVICE();
    *architecture = (nvmlDeviceArchitecture_t)number("architecture", slot, NVML_DEVICE_ARCH_HOPPER);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE();
    *major = (int)number("compute_capability_major", slot, 9);
    *minor = (int)number("compute_capability_minor", slot, 0);
    return NVML_SUCCESS;
}

static nvmlReturn_t mask_of(unsigned int words, unsigned long *set, int first, int count)
{
    memset(set, 0, words * sizeof *set);
    for (int bit = first; bit < first + count; bit++)
        if ((unsigned)bit / 64 < words) set[bit / 64] |= 1ul << bit % 64;
    return NVML_SUCCESS;
}

static int numa_node(int slot) { return (int)number("numa_node", slot, slot / 4); }

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope)
{
    (void)scope;
    ENTER_DEVICE();
    return mask_of(words, set, numa_node(slot), 1);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    ENTER_DEVICE();
    int cores = (int)number("cores_per_numa_node", -1, 56);
    return mask_of(words, set, numa_node(slot) * cores, cores);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_DEVICE();
    *current = *pending = (unsigned)number("mig_mode", slot, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
    ENTER_DEVICE();
    *mode = (nvmlGpuVirtualizationMode_t)number("virtualization_mode", slot, NVML_GPU_VIRTUALIZATION_MODE_NONE);
    return NVML_SUCCESS;
}

/* ---- One unsigned number per device --------------------------------------------------------------------- */

/* What is in force is what was requested, unless a module shares its power. */
static long long power_limit(int slot) { return number("power_limit_milliwatts", slot, 700000); }

#define UNSIGNED(function, key, otherwise)                                  \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *value)         \
    {                                                                       \
        ENTER_DEVICE();                                                     \
        *value = (unsigned)number(key, slot, otherwise);                    \
        return NVML_SUCCESS;                                                \
    }

UNSIGNED(nvmlDeviceGetMinorNumber, "minor", slot)
UNSIGNED(nvmlDeviceGetModuleId, "module_id", slot + 1)
UNSIGNED(nvmlDeviceGetBoardId, "board_id", 0x100 * (slot + 1))
UNSIGNED(nvmlDeviceGetNumGpuCores, "cuda_cores", 16896)
UNSIGNED(nvmlDeviceGetMemoryBusWidth, "memory_bus_width", 5120)
UNSIGNED(nvmlDeviceGetPowerUsage, "power_milliwatts", 120000)
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit_milliwatts", 700000)
UNSIGNED(nvmlDeviceGetPowerManagementLimit, "power_limit_requested_milliwatts", power_limit(slot))
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default_milliwatts", 700000)
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 5)
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_maximum", 5)
UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_device_maximum", 5)
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_maximum", 16)
UNSIGNED(nvmlDeviceGetPcieReplayCounter, "pcie_replays", 0)

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER_DEVICE();
    *mode = number("persistence_mode", slot, 1) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER_DEVICE();
    *mode = (nvmlComputeMode_t)number("compute_mode", slot, NVML_COMPUTEMODE_DEFAULT);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state)
{
    ENTER_DEVICE();
    *state = (nvmlPstates_t)number("performance_state", slot, NVML_PSTATE_0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active)
{
    ENTER_DEVICE();
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* ---- Heat, power, clocks --------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
    ENTER_DEVICE();
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)number("temperature", slot, 40);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER_DEVICE();
    if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int)number("temperature", slot, 40);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ENTER_DEVICE();
    if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    margin->marginTemperature = (int)number("temperature_margin", slot, 47);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned int *celsius)
{
    ENTER_DEVICE();
    switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: *celsius = (unsigned)number("threshold_shutdown", slot, 95); break;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: *celsius = (unsigned)number("threshold_slowdown", slot, 89); break;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: *celsius = (unsigned)number("threshold_maximum", slot, 87); break;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: *celsius = (unsigned)number("threshold_memory_maximum", slot, 95); break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high)
{
    ENTER_DEVICE();
    *low = (unsigned)number("power_limit_minimum_milliwatts", slot, 200000);
    *high = (unsigned)number("power_limit_maximum_milliwatts", slot, 700000);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    ENTER_DEVICE();
    *energy = (unsigned long long)number("energy_millijoules", slot, 7200000000);
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(int slot, nvmlClockType_t type, int maximum, unsigned int *megahertz)
{
    static const char *now[] = {"sm_clock_megahertz", "sm_clock_megahertz", "memory_clock_megahertz", "video_clock_megahertz"};
    static const char *most[] = {"sm_clock_maximum_megahertz", "sm_clock_maximum_megahertz",
                                 "memory_clock_maximum_megahertz", "video_clock_maximum_megahertz"};
    static const int held[] = {1980, 1980, 2619, 1545};
    if ((unsigned)type > NVML_CLOCK_VIDEO) return NVML_ERROR_INVALID_ARGUMENT;
    *megahertz = (unsigned)number((maximum ? most : now)[type], slot, held[type]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *megahertz)
{
    ENTER_DEVICE();
    return clock_of(slot, type, 0, megahertz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *megahertz)
{
    ENTER_DEVICE();
    return clock_of(slot, type, 1, megahertz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *megahertz)
{
    ENTER_DEVICE();
    return clock_of(slot, type, id == NVML_CLOCK_ID_CUSTOMER_BOOST_MAX, megahertz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    ENTER_DEVICE();
    *mask = (unsigned long long)number("event_reasons", slot, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask)
{
    ENTER_DEVICE();
    *mask = (unsigned long long)number("event_reasons", slot, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    ENTER_DEVICE();
    *mask = (unsigned long long)number("event_reasons_supported", slot, 0x1ff);
    return NVML_SUCCESS;
}

static const char *policies[] = {
    "violation_power_nanoseconds",       "violation_thermal_nanoseconds",         "violation_sync_boost_nanoseconds",
    "violation_board_limit_nanoseconds", "violation_low_utilization_nanoseconds", "violation_reliability_nanoseconds",
};

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *time)
{
    ENTER_DEVICE();
    if ((unsigned)policy > NVML_PERF_POLICY_RELIABILITY) return NVML_ERROR_NOT_SUPPORTED;
    time->referenceTime = (unsigned long long)number("reference_microseconds", slot, 1000000);
    time->violationTime = (unsigned long long)number(policies[policy], slot, 0);
    return NVML_SUCCESS;
}

/* ---- Memory errors ---------------------------------------------------------------------------------------- */

static const char *locations[] = {"l1", "l2", "dram", "register", "texture", "texture_shared", "cbu", "sram"};

/* Since Ampere a board counts DRAM and SRAM; "ecc_locations" (a mask of locations) plays older boards. */
static int counts_errors(int slot, int location)
{
    return (int)(number("ecc_locations", slot, 1 << NVML_MEMORY_LOCATION_DRAM | 1 << NVML_MEMORY_LOCATION_SRAM) >> location & 1);
}

static long long memory_errors(int slot, int uncorrected, int aggregate, int location)
{
    char key[96];
    snprintf(key, sizeof key, "ecc_%s_%s_%s", uncorrected ? "uncorrected" : "corrected",
             aggregate ? "aggregate" : "volatile", locations[location]);
    return number(key, slot, 0);
}

static long long memory_errors_total(int slot, int uncorrected, int aggregate)
{
    long long total = 0;
    for (int location = 0; location < NVML_MEMORY_LOCATION_COUNT; location++)
        if (counts_errors(slot, location)) total += memory_errors(slot, uncorrected, aggregate, location);
    return total;
}

static int has_ecc(int slot) { return number("ecc_mode", slot, 1) == 1; }

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    ENTER_DEVICE();
    *current = *pending = has_ecc(slot) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *count)
{
    ENTER_DEVICE();
    if (!has_ecc(slot)) return NVML_ERROR_NOT_SUPPORTED;
    *count = (unsigned long long)memory_errors_total(slot, type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter == NVML_AGGREGATE_ECC);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location, unsigned long long *count)
{
    ENTER_DEVICE();
    if ((unsigned)location >= NVML_MEMORY_LOCATION_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (!has_ecc(slot) || !counts_errors(slot, location)) return NVML_ERROR_NOT_SUPPORTED;
    *count = (unsigned long long)memory_errors(slot, type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter == NVML_AGGREGATE_ECC, location);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER_DEVICE();
    if (status->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!has_ecc(slot) || !counts_errors(slot, NVML_MEMORY_LOCATION_SRAM)) return NVML_ERROR_NOT_SUPPORTED;
    memset((char *)status + sizeof status->version, 0, sizeof *status - sizeof status->version);
    status->volatileCor = (unsigned long long)memory_errors(slot, 0, 0, NVML_MEMORY_LOCATION_SRAM);
    status->volatileUncSecDed = (unsigned long long)memory_errors(slot, 1, 0, NVML_MEMORY_LOCATION_SRAM);
    status->aggregateCor = (unsigned long long)memory_errors(slot, 0, 1, NVML_MEMORY_LOCATION_SRAM);
    status->aggregateUncSecDed = (unsigned long long)memory_errors(slot, 1, 1, NVML_MEMORY_LOCATION_SRAM);
    status->bThresholdExceeded = (unsigned)number("sram_threshold_exceeded", slot, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed)
{
    ENTER_DEVICE();
    *correctable = (unsigned)number("remapped_correctable", slot, 0);
    *uncorrectable = (unsigned)number("remapped_uncorrectable", slot, 0);
    *pending = (unsigned)number("remap_pending", slot, 0);
    *failed = (unsigned)number("remap_failed", slot, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks)
{
    ENTER_DEVICE();
    banks->high = (unsigned)number("banks_high", slot, 0);
    banks->partial = (unsigned)number("banks_partial", slot, 0);
    banks->low = (unsigned)number("banks_low", slot, 0);
    banks->none = (unsigned)number("banks_none", slot, 0);
    banks->max = 2560 - banks->high - banks->partial - banks->low - banks->none;
    return NVML_SUCCESS;
}

/* Boards before Ampere retire pages; the fake does where a test says how many. Its pages have no addresses. */
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    ENTER_DEVICE();
    const char *key = cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired_pages_uncorrectable"
                                                                               : "retired_pages_corrected";
    long long pages = number(key, slot, -1);
    if (pages < 0) return NVML_ERROR_NOT_SUPPORTED;
    if (addresses == NULL || *count < pages) {
        *count = (unsigned)pages;
        return pages ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    for (long long page = 0; page < pages; page++) addresses[page] = (unsigned long long)page << 12;
    *count = (unsigned)pages;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    ENTER_DEVICE();
    long long waits = number("retired_pages_pending", slot, -1);
    if (waits < 0) return NVML_ERROR_NOT_SUPPORTED;
    *pending = waits ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* ---- Links and topology ------------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    ENTER_LINK();
    *active = link_state(slot, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    ENTER_LINK();
    *version = (unsigned)number("link_version", slot, 6); /* the library's number for NVLink 4.0 */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability, unsigned int *has)
{
    ENTER_LINK();
    (void)capability;
    *has = 1;
    return NVML_SUCCESS;
}

static const char *link_errors[] = {"link_replay_errors", "link_recovery_errors", "link_crc_errors", "link_crc_data_errors"};

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *value)
{
    ENTER_LINK();
    if ((unsigned)counter >= sizeof link_errors / sizeof *link_errors) return NVML_ERROR_NOT_SUPPORTED;
    *value = (unsigned long long)number_of(link_errors[counter], slot, (int)link, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    ENTER_LINK();
    *type = (nvmlIntNvLinkDeviceType_t)number_of("link_remote_type", slot, (int)link, NVML_NVLINK_DEVICE_TYPE_SWITCH);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    char made[32];
    ENTER_LINK();
    if (!link_state(slot, link)) return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    snprintf(made, sizeof made, "00000000:%02X:00.0", 0x05 + link % 4);
    text_of("link_remote_pci", slot, (int)link, made, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ENTER_DEVICE();
    if (info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(info->clusterUuid, 0, sizeof info->clusterUuid);
    info->cliqueId = (unsigned)number("fabric_clique", slot, 0);
    info->state = (nvmlGpuFabricState_t)number("fabric_state", slot, NVML_GPU_FABRIC_STATE_COMPLETED);
    info->status = (nvmlReturn_t)number("fabric_status", slot, NVML_SUCCESS);
    info->healthMask = (unsigned)number("fabric_health_mask", slot, 0x1aa); /* every group says no fault */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER_DEVICE();
    memset(info, 0, sizeof *info);
    info->state = (nvmlGpuFabricState_t)number("fabric_state", slot, NVML_GPU_FABRIC_STATE_COMPLETED);
    info->status = (nvmlReturn_t)number("fabric_status", slot, NVML_SUCCESS);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    ENTER_DEVICE();
    int peer = slot_of(other);
    if (peer < 0) return NVML_ERROR_INVALID_ARGUMENT;
    int first = slot < peer ? slot : peer, second = slot < peer ? peer : slot;
    int near = numa_node(slot) == numa_node(peer);
    *level = (nvmlGpuTopologyLevel_t)number_of("topology", first, second, near ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t capability, nvmlGpuP2PStatus_t *status)
{
    ENTER_DEVICE();
    if (slot_of(other) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    const char *key = capability == NVML_P2P_CAPS_INDEX_NVLINK ? "peer_nvlink_status" : "peer_status";
    *status = (nvmlGpuP2PStatus_t)number_of(key, slot, slot_of(other), links(slot) ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED);
    return NVML_SUCCESS;
}

/* ---- Load -------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER_DEVICE();
    if (number("mig_mode", slot, 0)) return NVML_ERROR_NOT_SUPPORTED;
    rates->gpu = (unsigned)number("utilization_percent", slot, 0);
    rates->memory = (unsigned)number("memory_utilization_percent", slot, 0);
    return NVML_SUCCESS;
}

static nvmlReturn_t idle_engine(nvmlDevice_t device, const char *function, unsigned int *percent, unsigned int *period)
{
    nvmlReturn_t entered = enter(function, slot_of(device), 1);
    *percent = 0;
    *period = 167000;
    return entered;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period)
{
    return idle_engine(device, __func__, percent, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period)
{
    return idle_engine(device, __func__, percent, period);
}

static unsigned long long memory_total(int slot) { return (unsigned long long)number("memory_total_bytes", slot, 85520809984); }
static unsigned long long memory_used(int slot) { return (unsigned long long)number("memory_used_bytes", slot, 4 << 20); }
static unsigned long long memory_reserved(int slot) { return (unsigned long long)number("memory_reserved_bytes", slot, 577 << 20); }

/* The first version counts what the driver reserves as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE();
    memory->total = memory_total(slot);
    memory->used = memory_used(slot) + memory_reserved(slot);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE();
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = memory_total(slot);
    memory->reserved = memory_reserved(slot);
    memory->used = memory_used(slot);
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER_DEVICE();
    memory->bar1Total = 128ull << 30;
    memory->bar1Used = 1 << 20;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* "processes.3 4711:1073741824 4712:0": process id and bytes. */
static nvmlReturn_t list_processes(int slot, unsigned int *count, nvmlProcessInfo_t *infos)
{
    char value[1024], *rest = value, *word;
    unsigned int room = *count, found = 0;
    text_of("processes", slot, -1, "", value, sizeof value);
    for (word = strtok_r(value, " ", &rest); word; word = strtok_r(NULL, " ", &rest), found++) {
        unsigned int pid = 0;
        unsigned long long bytes = 0;
        sscanf(word, "%u:%llu", &pid, &bytes);
        if (infos && found < room) infos[found] = (nvmlProcessInfo_t){pid, bytes, 0xFFFFFFFF, 0xFFFFFFFF};
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER_DEVICE();
    return list_processes(slot, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE();
    return list_processes(slot, count, infos);
}

static nvmlReturn_t no_processes(nvmlDevice_t device, const char *function, unsigned int *count)
{
    *count = 0;
    return enter(function, slot_of(device), 1);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, __func__, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, __func__, count);
}

/* ---- Field values ------------------------------------------------------------------------------------------ */

static void put_unsigned(nvmlFieldValue_t *field, long long value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = (unsigned)value;
}

static void put_long(nvmlFieldValue_t *field, long long value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = (unsigned long long)value;
}

static void put_signed(nvmlFieldValue_t *field, long long value)
{
    field->valueType = NVML_VALUE_TYPE_SIGNED_INT;
    field->value.siVal = (int)value;
}

/* Identifiers 3 to 28 come in a fixed order of counter, location and corrected before uncorrected. */
static nvmlReturn_t put_memory_errors(nvmlFieldValue_t *field, int slot)
{
    static const signed char location_of[29] = {
        [7] = 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 6, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 6};
    unsigned id = field->fieldId;
    int aggregate = id == 5 || id == 6 || id >= 18;
    int uncorrected = id == 17 || id == 28 || (id < 17 ? id % 2 == 0 : id % 2 == 1);
    if (!has_ecc(slot)) return NVML_ERROR_NOT_SUPPORTED;
    if (id < 7) {
        put_long(field, memory_errors_total(slot, uncorrected, aggregate));
        return NVML_SUCCESS;
    }
    if (!counts_errors(slot, location_of[id])) return NVML_ERROR_NOT_SUPPORTED;
    put_long(field, memory_errors(slot, uncorrected, aggregate, location_of[id]));
    return NVML_SUCCESS;
}

/* The throttle counters had the numbers 251 to 253 for a time and have 269 to 271 since; power smoothing has the rest. */
static nvmlReturn_t put_throttle_or_smoothing(nvmlFieldValue_t *field, int slot)
{
    static const char *keys[] = {"violation_software_thermal_nanoseconds", "violation_hardware_thermal_nanoseconds",
                                 "violation_power_brake_nanoseconds"};
    long long base = number("throttle_field_base", -1, 269);
    if (base && field->fieldId >= base && field->fieldId < base + 3) {
        put_long(field, number(keys[field->fieldId - base], slot, 0));
        return NVML_SUCCESS;
    }
    if (!number("power_smoothing", slot, 0)) return NVML_ERROR_NOT_SUPPORTED;
    put_unsigned(field, 1);
    return NVML_SUCCESS;
}

static nvmlReturn_t put_link(nvmlFieldValue_t *field, int slot)
{
    unsigned link = field->scopeId;
    int generation_5 = number("link_version", slot, 6) >= 7;
    if (!links(slot)) return NVML_ERROR_NOT_SUPPORTED;
    if (link >= links(slot)) return NVML_ERROR_INVALID_ARGUMENT;
    switch (field->fieldId) {
    case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY:
    case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY:
    case NVML_FI_DEV_NVLINK_ERROR_DL_CRC:
        if (generation_5) return NVML_ERROR_NOT_SUPPORTED;
        put_long(field, number_of(link_errors[field->fieldId - NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY], slot, (int)link, 0));
        break;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        put_unsigned(field, link_state(slot, link) ? number_of("link_megabytes_per_second", slot, (int)link, 26562) : 0);
        break;
    case NVML_FI_DEV_NVLINK_GET_STATE: put_unsigned(field, link_state(slot, link)); break;
    case NVML_FI_DEV_NVLINK_GET_VERSION: put_unsigned(field, number("link_version", slot, 6)); break;
    case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS:
    case NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS:
        if (!generation_5) return NVML_ERROR_NOT_SUPPORTED;
        put_long(field, number_of(field->fieldId == NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS ? "link_effective_errors"
                                                                                            : "link_recovery_errors",
                                  slot, (int)link, 0));
        break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t put_power(nvmlFieldValue_t *field, int slot)
{
    static const char *keys[] = {"power_milliwatts", "power_milliwatts", "power_limit_minimum_milliwatts",
                                 "power_limit_maximum_milliwatts", "power_limit_default_milliwatts", "power_limit_milliwatts"};
    static const int otherwise[] = {120000, 120000, 200000, 700000, 700000, 700000};
    unsigned which = field->fieldId - NVML_FI_DEV_POWER_AVERAGE;
    char key[64];
    if (field->scopeId == 0) {
        put_unsigned(field, number(keys[which], slot, otherwise[which]));
        return NVML_SUCCESS;
    }
    snprintf(key, sizeof key, "%s_%s", field->scopeId == 1 ? "module" : "memory", keys[which]);
    long long value = number(key, slot, -1);
    if (value < 0) return NVML_ERROR_NOT_SUPPORTED;
    put_unsigned(field, value);
    return NVML_SUCCESS;
}

static nvmlReturn_t put_field(nvmlFieldValue_t *field, int slot)
{
    unsigned id = field->fieldId;
    if (id >= 3 && id <= 28) return put_memory_errors(field, slot);
    if (id >= NVML_FI_DEV_PERF_POLICY_POWER && id <= NVML_FI_DEV_PERF_POLICY_RELIABILITY) {
        put_long(field, number(policies[id - NVML_FI_DEV_PERF_POLICY_POWER], slot, 0));
        return NVML_SUCCESS;
    }
    if ((id >= 161 && id <= 166) || (id >= 201 && id <= 222)) return put_link(field, slot);
    if (id >= NVML_FI_DEV_POWER_AVERAGE && id <= NVML_FI_DEV_POWER_CURRENT_LIMIT) return put_power(field, slot);
    if (id >= 251 && id <= 273) return put_throttle_or_smoothing(field, slot);
    switch (id) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: put_unsigned(field, has_ecc(slot)); break;
    case NVML_FI_DEV_MEMORY_TEMP: put_unsigned(field, number("memory_temperature", slot, 48)); break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: put_long(field, number("energy_millijoules", slot, 7200000000)); break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: put_unsigned(field, number("link_megabytes_per_second", slot, 26562)); break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT: put_unsigned(field, number("link_count", slot, links(slot))); break;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER: put_unsigned(field, number("pcie_replays", slot, 0)); break;
    case NVML_FI_DEV_REMAPPED_COR: put_unsigned(field, number("remapped_correctable", slot, 0)); break;
    case NVML_FI_DEV_REMAPPED_UNC: put_unsigned(field, number("remapped_uncorrectable", slot, 0)); break;
    case NVML_FI_DEV_REMAPPED_PENDING: put_unsigned(field, number("remap_pending", slot, 0)); break;
    case NVML_FI_DEV_REMAPPED_FAILURE: put_unsigned(field, number("remap_failed", slot, 0)); break;
    case NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS: put_unsigned(field, number("pcie_correctable_errors", slot, 0)); break;
    case NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR: put_unsigned(field, number("pcie_nonfatal_errors", slot, 0)); break;
    case NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR: put_unsigned(field, number("pcie_fatal_errors", slot, 0)); break;
    case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: put_signed(field, number("margin_shutdown", slot, -8)); break;
    case NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: put_signed(field, number("margin_slowdown", slot, -2)); break;
    case NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: put_signed(field, number("margin_memory_maximum", slot, 0)); break;
    case NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: put_signed(field, number("margin_maximum", slot, 0)); break;
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
        put_unsigned(field, number("power_limit_requested_milliwatts", slot, power_limit(slot)));
        break;
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: put_unsigned(field, number("recovery_action", slot, 0)); break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

static long long field_error(unsigned id, int slot)
{
    char key[48];
    snprintf(key, sizeof key, "error.field.%u", id);
    return number(key, slot, 0);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    ENTER_DEVICE();
    for (int i = 0; i < count; i++) {
        long long error = field_error(fields[i].fieldId, slot);
        fields[i].timestamp = (long long)time(NULL) * 1000000;
        fields[i].latencyUsec = 0;
        fields[i].valueType = 0;
        memset(&fields[i].value, 0, sizeof fields[i].value);
        fields[i].nvmlReturn = error ? (nvmlReturn_t)error : put_field(&fields[i], slot);
    }
    return NVML_SUCCESS;
}

/* ---- Events ------------------------------------------------------------------------------------------------- */

struct set { int watch; long last; unsigned long long types[SLOTS]; };

/* A set hears only of what happens after it was made, like the real one. */
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER_SYSTEM();
    const char *path = getenv("NODEVET_FAKE_NVML");
    struct set *made = calloc(1, sizeof *made);
    if (!made) return NVML_ERROR_MEMORY;
    made->last = newest_event();
    made->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (path) {
        char *directory = strdup(path), *slash = strrchr(directory, '/');
        if (slash) *slash = 0;
        inotify_add_watch(made->watch, slash ? directory : ".", IN_MOVED_TO | IN_CLOSE_WRITE);
        free(directory);
    }
    *set = (nvmlEventSet_t)made;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER_DEVICE();
    *types = (unsigned long long)number("event_types", slot, nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER_DEVICE();
    ((struct set *)set)->types[slot] |= types;
    return NVML_SUCCESS;
}

static int take_event(struct set *set, nvmlEventData_t *data)
{
    struct event event;
    while (next_event(set->last, &event)) {
        set->last = event.sequence;
        if (event.slot < 0 || event.slot >= SLOTS || !(set->types[event.slot] & event.type)) continue;
        *data = (nvmlEventData_t){(nvmlDevice_t)&slots[event.slot], event.type, event.data, 0xFFFFFFFF, 0xFFFFFFFF};
        return 1;
    }
    return 0;
}

static long long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    struct set *own = (struct set *)set;
    long long deadline = milliseconds() + timeout;
    ENTER_SYSTEM();
    while (!take_event(own, data)) {
        char drained[4096];
        long long left = deadline - milliseconds();
        struct pollfd wait = {own->watch, POLLIN, 0};
        if (left <= 0) return NVML_ERROR_TIMEOUT;
        if (poll(&wait, 1, (int)left) > 0)
            while (read(own->watch, drained, sizeof drained) > 0) continue;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER_SYSTEM();
    close(((struct set *)set)->watch);
    free(set);
    return NVML_SUCCESS;
}
