/* A libamd_smi.so that plays a machine described by a text file.
 *
 * The file is named by NODEVET_FAKE_AMDSMI; scenario.py documents the keys and ../scenario.h their grammar. Without a
 * file the machine is a healthy node of eight MI300X, each linked with every other. NODEVET_FAKE_AMDSMI_LOG names a
 * file that receives one line per call: function, slot.
 *
 * amdsmi_layout.h is generated from the Python wrapper that is installed (layout.py); its HAS_ names say what that
 * release declares. As in the real library, fields that the board does not fill hold the largest number of their type.
 */
#define _GNU_SOURCE
#include "../scenario.h"
#include "amdsmi_layout.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint32_t status_t;

enum { VENDOR = 0x1002, MAX_LINKS = 8, TICKS_PER_SECOND = 1000, FIRMWARES = 3 };

const char *const scenario_variable = "NODEVET_FAKE_AMDSMI", *const scenario_log_variable = "NODEVET_FAKE_AMDSMI_LOG";

static int initialised; /* amdsmi_init and amdsmi_shut_down are counted */
static char devices[SLOTS], sockets[SLOTS]; /* a handle is the address of its slot; a socket holds one device */

/* As ROCm's third_party/shared_mutex.cc: a lock in a file that every user may write, or one of its own where asked. */
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER, *lock = &own_lock;

static void share_lock(void)
{
    char path[4096];
    const char *own = getenv("RSMI_MUTEX_THREAD_ONLY");
    text_of("lock", SYSTEM, -1, "", path, sizeof path);
    int file = *path && !(own && atoi(own) == 1) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof *lock, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) lock = shared;
    close(file);
}

/* ---- Entering a call ----------------------------------------------------------------------------------- */

static status_t enter(const char *function, int slot, int needs_init)
{
    long long error = enter_call(function, slot);
    if (needs_init && !initialised) return AMDSMI_STATUS_NOT_INIT;
    if (slot >= 0) {
        pthread_mutex_lock(lock);
        pthread_mutex_unlock(lock);
    }
    if (error) return (status_t)error;
    return slot >= 0 && !present(slot) ? AMDSMI_STATUS_NOT_FOUND : AMDSMI_STATUS_SUCCESS;
}

static int slot_of(const void *handle, const char *handles)
{
    const char *own = handle;
    return own >= handles && own < handles + SLOTS ? (int)(own - handles) : -2;
}

#define ENTER(slot, needs_init)                                             \
    do {                                                                    \
        status_t entered = enter(__func__, slot, needs_init);               \
        if (entered) return entered;                                        \
    } while (0)

#define ENTER_SYSTEM() ENTER(SYSTEM, 1)

#define ENTER_DEVICE()                                                      \
    int slot = slot_of(device, devices);                                    \
    if (slot < 0) return AMDSMI_STATUS_INVAL;                               \
    ENTER(slot, 1)

#define ENTER_PAIR()                                                        \
    ENTER_DEVICE();                                                         \
    int peer = slot_of(other, devices);                                     \
    if (peer < 0) return AMDSMI_STATUS_INVAL

#define UNSET(record) memset(record, 0xFF, sizeof *(record))

#define TEXT(field, key, otherwise) text_of(key, slot, -1, otherwise, field, sizeof(field))

static long long ratio_of(const char *key, int slot, long long otherwise, long long divisor)
{
    return (number(key, slot, otherwise) + divisor / 2) / divisor;
}

/* ---- Library ------------------------------------------------------------------------------------------- */

status_t amdsmi_init(uint64_t flags)
{
    (void)flags;
    ENTER(SYSTEM, 0);
    share_lock();
    initialised++;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_shut_down(void)
{
    ENTER_SYSTEM();
    initialised--;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_status_code_to_string(status_t status, char **text)
{
    static __thread char made[32];
    snprintf(made, sizeof made, "AMD SMI code %u", status);
    *text = made;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_lib_version(amdsmi_version_t *version)
{
    static char build[64];
    unsigned major = 0, minor = 0, release = 0;
    ENTER_SYSTEM();
    text_of("library_version", -1, -1, "26.0.2", build, sizeof build);
    sscanf(build, "%u.%u.%u", &major, &minor, &release);
    version->major = major;
    version->minor = minor;
    version->release = release;
    version->build = build;
    return AMDSMI_STATUS_SUCCESS;
}

void amdsmi_free_name_value_pairs(void *pairs) { free(pairs); }

/* The first pass, without an array, gives the count; the second fills the array. */
status_t amdsmi_get_socket_handles(uint32_t *count, void **handles)
{
    uint32_t room = *count, found = 0;
    ENTER_SYSTEM();
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!present(slot)) continue;
        if (handles && found < room) handles[found] = &sockets[slot];
        found++;
    }
    *count = handles && found > room ? room : found;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    int slot = slot_of(socket, sockets);
    if (slot < 0) return AMDSMI_STATUS_INVAL;
    ENTER(SYSTEM, 1);
    if (handles && *count) handles[0] = &devices[slot];
    *count = 1;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_processor_type(void *device, uint32_t *type)
{
    ENTER_DEVICE();
    *type = AMDSMI_PROCESSOR_TYPE_AMD_GPU;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- Inventory ----------------------------------------------------------------------------------------- */

static uint64_t address_of(int slot)
{
    uint64_t domain = (uint64_t)number("pci_domain", slot, 0);
    return domain << 16 | (uint64_t)(number("pci_bus", slot, 0x10 * slot + 0x0c) & 0xff) << 8;
}

static uint32_t pci_device_of(int slot) { return (uint32_t)number("pci_device_id", slot, 0x74a11002) >> 16; }

status_t amdsmi_get_gpu_device_bdf(void *device, amdsmi_bdf_t *address)
{
    ENTER_DEVICE();
    address->as_uint = address_of(slot);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_bdf_id(void *device, uint64_t *address)
{
    ENTER_DEVICE();
    uint64_t own = address_of(slot);
    *address = own >> 16 << 32 | (own & 0xffff);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_device_uuid(void *device, uint32_t *length, char *uuid)
{
    char made[64];
    ENTER_DEVICE();
    snprintf(made, sizeof made, "5eed%04x-0000-1000-80a1-%012x", slot, 0x100 + slot);
    text_of("uuid", slot, -1, made, uuid, *length);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_asic_info(void *device, amdsmi_asic_info_t *info)
{
    char made[64];
    ENTER_DEVICE();
    UNSET(info);
    snprintf(made, sizeof made, "%016x", 0x5eed0100 + slot);
    TEXT(info->market_name, "name", "AMD Instinct MI300X");
    TEXT(info->vendor_name, "vendor_name", "Advanced Micro Devices Inc. [AMD/ATI]");
    TEXT(info->asic_serial, "asic_serial", made);
    info->vendor_id = VENDOR;
    info->subvendor_id = VENDOR;
    info->device_id = pci_device_of(slot);
    info->rev_id = (uint32_t)number("pci_revision", slot, 0);
    info->oam_id = (uint32_t)number("module_id", slot, slot);
#ifdef HAS_amdsmi_asic_info_t_num_of_compute_units
    info->num_of_compute_units = (uint32_t)number("compute_units", slot, 304);
#endif
#ifdef HAS_amdsmi_asic_info_t_target_graphics_version
    info->target_graphics_version = (uint64_t)number("graphics_version", slot, 0x942);
#endif
#ifdef HAS_amdsmi_asic_info_t_subsystem_id
    info->subsystem_id = (uint32_t)number("pci_subsystem_id", slot, 0x74a11002) >> 16;
#endif
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_board_info(void *device, amdsmi_board_info_t *info)
{
    char made[32];
    ENTER_DEVICE();
    UNSET(info);
    snprintf(made, sizeof made, "69240000%04d", 100 + slot);
    TEXT(info->product_serial, "serial", made);
    TEXT(info->model_number, "board_part_number", "102-G30211-0C");
    TEXT(info->fru_id, "fru_id", "113-AMDG302110C01");
    TEXT(info->product_name, "product_name", "AMD Instinct MI300X OAM");
    TEXT(info->manufacturer_name, "manufacturer_name", "AMD");
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_vram_info(void *device, amdsmi_vram_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    info->vram_type = AMDSMI_VRAM_TYPE_HBM3;
    info->vram_size = (typeof(info->vram_size))(number("memory_total_bytes", slot, 206141652992) >> 20);
#ifdef HAS_amdsmi_vram_info_t_vram_bit_width
    info->vram_bit_width = (uint32_t)number("memory_bus_width", slot, 8192);
#endif
#ifdef IS_TEXT_amdsmi_vram_info_t_vram_vendor /* a number up to 6.4 */
    TEXT(info->vram_vendor, "memory_vendor", "HYNIX");
#endif
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_get_gpu_enumeration_info
status_t amdsmi_get_gpu_enumeration_info(void *device, amdsmi_enumeration_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    info->drm_render = (uint32_t)number("minor", slot, 128 + slot);
    info->drm_card = (uint32_t)number("drm_card", slot, slot + 1);
    info->hsa_id = (uint32_t)number("hsa_id", slot, slot + 2);
    info->hip_id = (uint32_t)number("hip_id", slot, slot);
    snprintf(info->hip_uuid, sizeof info->hip_uuid, "GPU-%016x", 0x5eed0100 + slot);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

#ifdef HAS_amdsmi_get_gpu_kfd_info
status_t amdsmi_get_gpu_kfd_info(void *device, amdsmi_kfd_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    info->kfd_id = (uint64_t)number("kfd_id", slot, 0x1000 + slot);
    info->node_id = (uint32_t)number("hsa_id", slot, slot + 2);
    info->current_partition_id = (uint32_t)number("partition_id", slot, 0);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

status_t amdsmi_get_gpu_driver_info(void *device, amdsmi_driver_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    TEXT(info->driver_version, "driver_version", "6.14.14");
    TEXT(info->driver_date, "driver_date", "2025/09/30 00:00");
    TEXT(info->driver_name, "driver_name", "amdgpu");
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_vbios_info(void *device, amdsmi_vbios_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    TEXT(info->name, "vbios_name", "AMD MI300X_HW_SRIOV_CVS_1VF");
    TEXT(info->build_date, "vbios_date", "2025/03/14 11:46");
    TEXT(info->part_number, "vbios_part_number", "113-M3000100-103");
    TEXT(info->version, "vbios", "022.040.003.043.000001");
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_fw_info(void *device, amdsmi_fw_info_t *info)
{
    static const uint32_t ids[FIRMWARES] = {AMDSMI_FW_ID_PM, AMDSMI_FW_ID_TA_RAS, AMDSMI_FW_ID_TA_XGMI};
    static const char *keys[FIRMWARES] = {"firmware_power", "firmware_ras", "firmware_xgmi"};
    static const long long otherwise[FIRMWARES] = {0x00557f00, 0x1b36020f, 0x20000015};
    ENTER_DEVICE();
    UNSET(info);
    info->num_fw_info = FIRMWARES;
    for (int i = 0; i < FIRMWARES; i++) {
        info->fw_info_list[i].fw_id = ids[i];
        info->fw_info_list[i].fw_version = (uint64_t)number(keys[i], slot, otherwise[i]);
    }
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_get_gpu_virtualization_mode
status_t amdsmi_get_gpu_virtualization_mode(void *device, uint32_t *mode)
{
    ENTER_DEVICE();
    *mode = (uint32_t)number("virtualization_mode", slot, AMDSMI_VIRTUALIZATION_MODE_BAREMETAL);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

status_t amdsmi_get_gpu_compute_partition(void *device, char *partition, uint32_t length)
{
    ENTER_DEVICE();
    text_of("compute_partition", slot, -1, "SPX", partition, length);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_memory_partition(void *device, char *partition, uint32_t length)
{
    ENTER_DEVICE();
    text_of("memory_partition", slot, -1, "NPS1", partition, length);
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- Heat, power, clocks --------------------------------------------------------------------------------- */

static long long temperature_limit(int slot, int memory, uint32_t metric)
{
    switch (metric) {
    case AMDSMI_TEMP_CRITICAL:
        return memory ? number("threshold_memory_slowdown", slot, 105) : number("threshold_slowdown", slot, 100);
    case AMDSMI_TEMP_EMERGENCY:
        return memory ? number("threshold_memory_shutdown", slot, 115) : number("threshold_shutdown", slot, 110);
    default: return -1;
    }
}

/* MI300X has no edge sensor and names no stacks; MI200 has both, which keys of their own then play. */
static long long temperature_now(int slot, uint32_t sensor)
{
    switch (sensor) {
    case AMDSMI_TEMPERATURE_TYPE_HOTSPOT: return number("temperature", slot, 40);
    case AMDSMI_TEMPERATURE_TYPE_VRAM: return number("memory_temperature", slot, 48);
    case AMDSMI_TEMPERATURE_TYPE_EDGE: return number("edge_temperature", slot, -1);
    case AMDSMI_TEMPERATURE_TYPE_PLX: return number("regulator_temperature", slot, -1);
    default:
        if (sensor < AMDSMI_TEMPERATURE_TYPE_HBM_0 || sensor > AMDSMI_TEMPERATURE_TYPE_HBM_3) return -1;
        return number_of("stack_temperature", slot, (int)(sensor - AMDSMI_TEMPERATURE_TYPE_HBM_0), -1);
    }
}

status_t amdsmi_get_temp_metric(void *device, uint32_t sensor, uint32_t metric, int64_t *celsius)
{
    ENTER_DEVICE();
    int memory = sensor != AMDSMI_TEMPERATURE_TYPE_HOTSPOT && sensor != AMDSMI_TEMPERATURE_TYPE_EDGE;
    long long now = temperature_now(slot, sensor);
    long long value = now < 0 || metric == AMDSMI_TEMP_CURRENT ? now : temperature_limit(slot, memory, metric);
    if (value < 0) return AMDSMI_STATUS_NOT_SUPPORTED;
    *celsius = value * number("temperature_scale", -1, 1);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_power_info(void *device, amdsmi_power_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    long long watts = ratio_of("power_milliwatts", slot, 140000, 1000);
#ifdef HAS_amdsmi_power_info_t_socket_power
    info->socket_power = (uint64_t)watts;
#endif
    info->current_socket_power = (uint32_t)watts;
    info->average_socket_power = 0xFFFF; /* only MI200 averages; the wrapper calls 16 bits of ones absent */
    info->gfx_voltage = info->soc_voltage = info->mem_voltage = 0xFFFF;
    info->power_limit = (uint32_t)(number("power_limit_milliwatts", slot, 750000) * 1000);
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_get_power_info_v2 /* what the wrapper of 6.4 calls */
status_t amdsmi_get_power_info_v2(void *device, uint32_t sensor, amdsmi_power_info_t *info)
{
    (void)sensor;
    return amdsmi_get_power_info(device, info);
}
#endif

/* Since ROCm 6.1 in microwatts, before in watts: "power_cap_per_watt 1" plays an older one. */
status_t amdsmi_get_power_cap_info(void *device, uint32_t sensor, amdsmi_power_cap_info_t *info)
{
    (void)sensor;
    ENTER_DEVICE();
    UNSET(info);
    long long per_watt = number("power_cap_per_watt", -1, 1000000);
    info->power_cap = (uint64_t)(number("power_limit_milliwatts", slot, 750000) * per_watt / 1000);
    info->default_power_cap = (uint64_t)(number("power_limit_default_milliwatts", slot, 750000) * per_watt / 1000);
    info->min_power_cap = (uint64_t)(number("power_limit_minimum_milliwatts", slot, 0) * per_watt / 1000);
    info->max_power_cap = (uint64_t)(number("power_limit_maximum_milliwatts", slot, 750000) * per_watt / 1000);
    info->dpm_cap = 0;
    return AMDSMI_STATUS_SUCCESS;
}

static long long now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static const double energy_resolution = 15.259; /* microjoules per tick */

static uint64_t energy_ticks(int slot)
{
    double microjoules = (double)number("energy_millijoules", slot, 7200000000) * 1e3;
    return (uint64_t)(microjoules / energy_resolution + 0.5);
}

status_t amdsmi_get_energy_count(void *device, uint64_t *ticks, float *resolution, uint64_t *timestamp)
{
    ENTER_DEVICE();
    *ticks = energy_ticks(slot);
    *resolution = (float)energy_resolution;
    *timestamp = (uint64_t)now_nanoseconds();
    return AMDSMI_STATUS_SUCCESS;
}

/* The firmware counts its own passes, about one per millisecond, and in how many of them each limit held. */
static uint64_t passes(int slot)
{
    return (uint64_t)number("accumulation_ticks", slot, now_nanoseconds() / (1000000000 / TICKS_PER_SECOND));
}

static uint64_t held(int slot, const char *reason)
{
    char key[96];
    snprintf(key, sizeof key, "violation_%s_nanoseconds", reason);
    return (uint64_t)(number(key, slot, 0) / (1000000000 / TICKS_PER_SECOND));
}

static uint64_t percent(int slot, const char *reason)
{
    char key[96];
    snprintf(key, sizeof key, "violation_%s_percent", reason);
    return (uint64_t)number(key, slot, 0);
}

#ifdef HAS_amdsmi_get_violation_status
/* The real library samples the firmware twice, 100 ms apart. */
status_t amdsmi_get_violation_status(void *device, amdsmi_violation_status_t *status)
{
    ENTER_DEVICE();
    long long milliseconds = number("violation_sample_milliseconds", -1, 100);
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
    UNSET(status);
    status->reference_timestamp = (uint64_t)(now_nanoseconds() / 1000);
    status->violation_timestamp = (uint64_t)milliseconds;
    status->acc_counter = passes(slot);
#define HELD(field, reason)                                                 \
    status->acc_##field = held(slot, reason);                               \
    status->per_##field = percent(slot, reason);                            \
    status->active_##field = percent(slot, reason) != 0
    HELD(prochot_thrm, "processor_hot");
    HELD(ppt_pwr, "power");
    HELD(socket_thrm, "thermal");
    HELD(vr_thrm, "regulator_thermal");
    HELD(hbm_thrm, "memory_thermal");
    return AMDSMI_STATUS_SUCCESS;
}
#endif

status_t amdsmi_get_clock_info(void *device, uint32_t type, amdsmi_clk_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    switch (type) {
    case AMDSMI_CLK_TYPE_GFX:
        info->clk = (uint32_t)number("sm_clock_megahertz", slot, 2100);
        info->max_clk = (uint32_t)number("sm_clock_maximum_megahertz", slot, 2100);
        info->min_clk = 500;
        break;
    case AMDSMI_CLK_TYPE_MEM:
        info->clk = (uint32_t)number("memory_clock_megahertz", slot, 1300);
        info->max_clk = (uint32_t)number("memory_clock_maximum_megahertz", slot, 1300);
        info->min_clk = 900;
        break;
    case AMDSMI_CLK_TYPE_SOC:
        info->clk = info->max_clk = (uint32_t)number("fabric_clock_megahertz", slot, 1700);
        info->min_clk = 29;
        break;
    default: return AMDSMI_STATUS_NOT_SUPPORTED;
    }
    info->clk_deep_sleep = 0;
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- Memory errors ---------------------------------------------------------------------------------------- */

/* The name of a block in the keys of the scenario; that of the memory is the same for every vendor. */
static const char *block_name(amdsmi_gpu_block_t block)
{
    switch (block) {
    case AMDSMI_GPU_BLOCK_UMC: return "dram";
    case AMDSMI_GPU_BLOCK_SDMA: return "sdma";
    case AMDSMI_GPU_BLOCK_GFX: return "gfx";
    case AMDSMI_GPU_BLOCK_MMHUB: return "mmhub";
    case AMDSMI_GPU_BLOCK_PCIE_BIF: return "pcie_bif";
    case AMDSMI_GPU_BLOCK_XGMI_WAFL: return "xgmi_wafl";
    default: return NULL;
    }
}

static uint64_t counting_blocks(int slot)
{
    long long known = AMDSMI_GPU_BLOCK_UMC | AMDSMI_GPU_BLOCK_SDMA | AMDSMI_GPU_BLOCK_GFX | AMDSMI_GPU_BLOCK_MMHUB |
                      AMDSMI_GPU_BLOCK_PCIE_BIF | AMDSMI_GPU_BLOCK_XGMI_WAFL;
    return number("ecc_mode", slot, 1) == 1 ? (uint64_t)number("ecc_blocks", slot, known) : 0;
}

static uint64_t errors_of(int slot, const char *kind, amdsmi_gpu_block_t block)
{
    char key[96];
    if (!block_name(block)) return 0;
    snprintf(key, sizeof key, "ecc_%s_volatile_%s", kind, block_name(block));
    return (uint64_t)number(key, slot, 0);
}

static void add_errors(int slot, amdsmi_gpu_block_t block, amdsmi_error_count_t *count)
{
    count->correctable_count += errors_of(slot, "corrected", block);
    count->uncorrectable_count += errors_of(slot, "uncorrected", block);
#ifdef HAS_amdsmi_error_count_t_deferred_count
    count->deferred_count += errors_of(slot, "deferred", block);
#endif
}

status_t amdsmi_get_gpu_ecc_count(void *device, amdsmi_gpu_block_t block, amdsmi_error_count_t *count)
{
    ENTER_DEVICE();
    if (!(counting_blocks(slot) & block)) return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(count, 0, sizeof *count);
    add_errors(slot, block, count);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_total_ecc_count(void *device, amdsmi_error_count_t *count)
{
    ENTER_DEVICE();
    if (!counting_blocks(slot)) return AMDSMI_STATUS_NOT_SUPPORTED;
    memset(count, 0, sizeof *count);
    for (amdsmi_gpu_block_t block = AMDSMI_GPU_BLOCK_UMC; block <= AMDSMI_GPU_BLOCK_LAST; block <<= 1)
        if (counting_blocks(slot) & block) add_errors(slot, block, count);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_ecc_enabled(void *device, uint64_t *blocks)
{
    ENTER_DEVICE();
    *blocks = counting_blocks(slot);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_ecc_status(void *device, amdsmi_gpu_block_t block, uint32_t *state)
{
    ENTER_DEVICE();
    *state = counting_blocks(slot) & block ? AMDSMI_RAS_ERR_STATE_ENABLED : AMDSMI_RAS_ERR_STATE_DISABLED;
    return AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_get_gpu_ras_feature_info
status_t amdsmi_get_gpu_ras_feature_info(void *device, amdsmi_ras_feature_t *info)
{
    ENTER_DEVICE();
    info->ras_eeprom_version = (uint32_t)number("ras_eeprom_version", slot, 0x30000);
    info->ecc_correction_schema_flag = (uint32_t)number("ras_schema", slot, 0xf);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

/* Pages come by state: taken out of use, waiting for it, and those that could not be taken. */
status_t amdsmi_get_gpu_bad_page_info(void *device, uint32_t *count, amdsmi_retired_page_record_t *pages)
{
    static const char *keys[] = {"bad_pages_reserved", "bad_pages_pending", "bad_pages_unreservable"};
    uint32_t room = *count, found = 0;
    ENTER_DEVICE();
    for (uint32_t state = 0; state < 3; state++) {
        for (long long left = number(keys[state], slot, 0); left > 0; left--, found++) {
            if (!pages || found >= room) continue;
            pages[found].page_address = 0x5eed000ull + found * 0x1000ull;
            pages[found].page_size = 0x1000;
            pages[found].status = state;
        }
    }
    *count = found;
    return pages && found > room ? AMDSMI_STATUS_INSUFFICIENT_SIZE : AMDSMI_STATUS_SUCCESS;
}

#ifdef HAS_amdsmi_get_gpu_bad_page_threshold
status_t amdsmi_get_gpu_bad_page_threshold(void *device, uint32_t *threshold)
{
    ENTER_DEVICE();
    *threshold = (uint32_t)number("bad_page_threshold", slot, 128);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

/* ---- PCIe, links and topology -------------------------------------------------------------------------------- */

static uint32_t megatransfers(long long generation)
{
    static const uint32_t speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    return generation >= 0 && generation < 7 ? speeds[generation] : 0;
}

static uint32_t pcie_speed(int slot) { return megatransfers(number("pcie_generation", slot, 5)); }

status_t amdsmi_get_pcie_info(void *device, amdsmi_pcie_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    info->pcie_static.max_pcie_width = (uint16_t)number("pcie_width_maximum", slot, 16);
    info->pcie_static.max_pcie_speed = megatransfers(number("pcie_generation_maximum", slot, 5));
    info->pcie_static.pcie_interface_version = (uint32_t)number("pcie_generation_maximum", slot, 5);
    info->pcie_static.slot_type = AMDSMI_CARD_FORM_FACTOR_OAM;
    info->pcie_metric.pcie_width = (uint16_t)number("pcie_width", slot, 16);
    info->pcie_metric.pcie_speed = pcie_speed(slot);
    info->pcie_metric.pcie_bandwidth = (uint32_t)number("pcie_megabits_per_second", slot, 12);
    info->pcie_metric.pcie_replay_count = (uint64_t)number("pcie_replays", slot, 0);
    info->pcie_metric.pcie_l0_to_recovery_count = (uint64_t)number("pcie_recoveries", slot, 0);
    info->pcie_metric.pcie_replay_roll_over_count = (uint64_t)number("pcie_replay_rollovers", slot, 0);
    info->pcie_metric.pcie_nak_sent_count = (uint64_t)number("pcie_naks_sent", slot, 0);
    info->pcie_metric.pcie_nak_received_count = (uint64_t)number("pcie_naks_received", slot, 0);
#ifdef HAS_struct_pcie_metric__pcie_lc_perf_other_end_recovery_count
    info->pcie_metric.pcie_lc_perf_other_end_recovery_count = (uint32_t)number("pcie_other_end_recoveries", slot, 0);
#endif
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_pci_replay_counter(void *device, uint64_t *count)
{
    ENTER_DEVICE();
    *count = (uint64_t)number("pcie_replays", slot, 0);
    return AMDSMI_STATUS_SUCCESS;
}

static int links(int slot) { return (int)number("links", slot, 7); }

#ifdef HAS_amdsmi_get_gpu_xgmi_link_status
/* 0 is down, 1 up, 2 disabled; a port beyond the links of the device is disabled. */
static uint32_t link_state(int slot, int link)
{
    if (link >= links(slot)) return AMDSMI_XGMI_LINK_DISABLE;
    return (uint32_t)number_of("link_state", slot, link, AMDSMI_XGMI_LINK_UP);
}
#endif

/* The links of a device lead to the others in their order. */
static int peer_of(int slot, int link) { return link < slot ? link : link + 1; }

/* Gigabits per second, all lanes together. */
static long long link_rate(int slot, int link)
{
    return number_of("link_megabytes_per_second", slot, link, 64000) * 8 / 1000;
}

#ifdef HAS_amdsmi_get_gpu_xgmi_link_status
/* The library lists as many ports as there are devices. */
status_t amdsmi_get_gpu_xgmi_link_status(void *device, amdsmi_xgmi_link_status_t *status)
{
    ENTER_DEVICE();
    int listed = count_present();
    UNSET(status);
    if (!links(slot)) return AMDSMI_STATUS_NOT_SUPPORTED;
    status->total_links = (uint32_t)(listed < MAX_LINKS ? listed : MAX_LINKS);
    for (int link = 0; link < MAX_LINKS; link++) status->status[link] = link_state(slot, link);
    return AMDSMI_STATUS_SUCCESS;
}
#endif

#ifdef HAS_amdsmi_get_link_metrics
status_t amdsmi_get_link_metrics(void *device, amdsmi_link_metrics_t *metrics)
{
    ENTER_DEVICE();
    UNSET(metrics);
    if (!links(slot)) return AMDSMI_STATUS_NOT_SUPPORTED;
    metrics->num_links = (uint32_t)links(slot);
    for (int link = 0; link < links(slot); link++) {
        metrics->links[link].bdf.as_uint = address_of(peer_of(slot, link));
        metrics->links[link].bit_rate = (uint32_t)(link_rate(slot, link) / 16);
        metrics->links[link].max_bandwidth = (uint32_t)link_rate(slot, link);
        metrics->links[link].link_type = AMDSMI_LINK_TYPE_XGMI;
        metrics->links[link].read = (uint64_t)number_of("link_read_kilobytes", slot, link, 0);
        metrics->links[link].write = (uint64_t)number_of("link_write_kilobytes", slot, link, 0);
    }
    return AMDSMI_STATUS_SUCCESS;
}
#endif

status_t amdsmi_get_xgmi_info(void *device, amdsmi_xgmi_info_t *info)
{
    ENTER_DEVICE();
    UNSET(info);
    if (!links(slot)) return AMDSMI_STATUS_NOT_SUPPORTED;
    info->xgmi_lanes = 16;
    info->xgmi_hive_id = (uint64_t)number("hive_id", slot, 0x5eed5eed);
    info->xgmi_node_id = (uint64_t)slot;
    info->index = (uint32_t)slot;
    return AMDSMI_STATUS_SUCCESS;
}

/* Real boards clear it when it is read. */
status_t amdsmi_gpu_xgmi_error_status(void *device, uint32_t *status)
{
    ENTER_DEVICE();
    *status = (uint32_t)number("link_error_status", slot, AMDSMI_XGMI_STATUS_NO_ERRORS);
    return AMDSMI_STATUS_SUCCESS;
}

/* The number of this call has been 1 for PCIe and 2 for XGMI in every release, whatever the enumeration says. */
status_t amdsmi_topo_get_link_type(void *device, void *other, uint64_t *hops, uint32_t *type)
{
    ENTER_PAIR();
    *type = (uint32_t)number_of("topology_link_type", slot, peer, links(slot) ? 2 : 1);
    *hops = (uint64_t)number_of("topology_hops", slot, peer, *type == 2 ? 1 : 3);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_topo_get_link_weight(void *device, void *other, uint64_t *weight)
{
    ENTER_PAIR();
    *weight = (uint64_t)number_of("topology_weight", slot, peer, links(slot) ? 15 : 52);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_minmax_bandwidth_between_processors(void *device, void *other, uint64_t *low, uint64_t *high)
{
    ENTER_PAIR();
    *low = *high = (uint64_t)number_of("topology_megabytes_per_second", slot, peer, 64000);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_is_P2P_accessible(void *device, void *other, uint8_t *accessible)
{
    ENTER_PAIR();
    *accessible = number_of("peer_status", slot, peer, 0) == 0;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_topo_get_p2p_status(void *device, void *other, uint32_t *type, amdsmi_p2p_capability_t *capability)
{
    ENTER_PAIR();
    UNSET(capability);
    *type = (uint32_t)number_of("topology_link_type", slot, peer, links(slot) ? 2 : 1);
    capability->is_iolink_coherent = capability->is_iolink_dma = number_of("peer_status", slot, peer, 0) == 0;
    capability->is_iolink_bi_directional = 1;
    return AMDSMI_STATUS_SUCCESS;
}

static long long numa_node(int slot) { return number("numa_node", slot, slot / 4); }

status_t amdsmi_topo_get_numa_node_number(void *device, uint32_t *node)
{
    ENTER_DEVICE();
    *node = (uint32_t)numa_node(slot);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_topo_numa_affinity(void *device, int32_t *node)
{
    ENTER_DEVICE();
    *node = (int32_t)numa_node(slot);
    return AMDSMI_STATUS_SUCCESS;
}

/* ---- Load -------------------------------------------------------------------------------------------------- */

static uint64_t memory_total(int slot) { return (uint64_t)number("memory_total_bytes", slot, 206141652992); }
static uint64_t memory_used(int slot) { return (uint64_t)number("memory_used_bytes", slot, 283 << 20); }

status_t amdsmi_get_gpu_activity(void *device, amdsmi_engine_usage_t *usage)
{
    ENTER_DEVICE();
    UNSET(usage);
    usage->gfx_activity = (uint32_t)number("utilization_percent", slot, 0);
    usage->umc_activity = (uint32_t)number("memory_utilization_percent", slot, 0);
    usage->mm_activity = 0xFFFF;
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_vram_usage(void *device, amdsmi_vram_usage_t *usage)
{
    ENTER_DEVICE();
    UNSET(usage);
    usage->vram_total = (uint32_t)(memory_total(slot) >> 20);
    usage->vram_used = (uint32_t)(memory_used(slot) >> 20);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_memory_total(void *device, uint32_t type, uint64_t *bytes)
{
    ENTER_DEVICE();
    if (type != AMDSMI_MEM_TYPE_VRAM) return AMDSMI_STATUS_NOT_SUPPORTED;
    *bytes = memory_total(slot);
    return AMDSMI_STATUS_SUCCESS;
}

status_t amdsmi_get_gpu_memory_usage(void *device, uint32_t type, uint64_t *bytes)
{
    ENTER_DEVICE();
    if (type != AMDSMI_MEM_TYPE_VRAM) return AMDSMI_STATUS_NOT_SUPPORTED;
    *bytes = memory_used(slot);
    return AMDSMI_STATUS_SUCCESS;
}

/* "processes.3 4711:1073741824 4712:0": process id and bytes. */
status_t amdsmi_get_gpu_process_list(void *device, uint32_t *count, amdsmi_proc_info_t *list)
{
    char value[1024], *rest = value, *word;
    uint32_t room = *count, found = 0;
    ENTER_DEVICE();
    text_of("processes", slot, -1, "", value, sizeof value);
    for (word = strtok_r(value, " ", &rest); word; word = strtok_r(NULL, " ", &rest), found++) {
        unsigned pid = 0;
        unsigned long long bytes = 0;
        sscanf(word, "%u:%llu", &pid, &bytes);
        if (!list || found >= room) continue;
        memset(&list[found], 0, sizeof list[found]);
        snprintf(list[found].name, sizeof list[found].name, "process-%u", pid);
        list[found].pid = pid;
        list[found].mem = list[found].memory_usage.vram_mem = bytes;
    }
    *count = found;
    return list && found > room ? AMDSMI_STATUS_OUT_OF_RESOURCES : AMDSMI_STATUS_SUCCESS;
}

/* ---- Everything at once --------------------------------------------------------------------------------------- */

static void put_link_metrics(int slot, amdsmi_gpu_metrics_t *metrics)
{
    metrics->xgmi_link_width = 16;
    metrics->xgmi_link_speed = (uint16_t)(link_rate(slot, 0) / 16);
    for (int link = 0; link < links(slot) && link < MAX_LINKS; link++) {
        metrics->xgmi_read_data_acc[link] = (uint64_t)number_of("link_read_kilobytes", slot, link, 0);
        metrics->xgmi_write_data_acc[link] = (uint64_t)number_of("link_write_kilobytes", slot, link, 0);
#ifdef HAS_amdsmi_gpu_metrics_t_xgmi_link_status
        metrics->xgmi_link_status[link] = (uint16_t)link_state(slot, link);
#endif
    }
}

static void put_residencies(int slot, amdsmi_gpu_metrics_t *metrics)
{
    metrics->accumulation_counter = passes(slot);
    metrics->prochot_residency_acc = held(slot, "processor_hot");
    metrics->ppt_residency_acc = held(slot, "power");
    metrics->socket_thm_residency_acc = held(slot, "thermal");
    metrics->vr_thm_residency_acc = held(slot, "regulator_thermal");
    metrics->hbm_thm_residency_acc = held(slot, "memory_thermal");
}

static void put_pcie_metrics(int slot, amdsmi_gpu_metrics_t *metrics)
{
    metrics->pcie_link_width = (uint16_t)number("pcie_width", slot, 16);
    metrics->pcie_link_speed = (uint16_t)(pcie_speed(slot) / 100); /* here in 0.1 GT/s */
    metrics->pcie_replay_count_acc = (uint64_t)number("pcie_replays", slot, 0);
    metrics->pcie_l0_to_recov_count_acc = (uint64_t)number("pcie_recoveries", slot, 0);
    metrics->pcie_replay_rover_count_acc = (uint64_t)number("pcie_replay_rollovers", slot, 0);
    metrics->pcie_nak_sent_count_acc = (uint32_t)number("pcie_naks_sent", slot, 0);
    metrics->pcie_nak_rcvd_count_acc = (uint32_t)number("pcie_naks_received", slot, 0);
}

status_t amdsmi_get_gpu_metrics_info(void *device, amdsmi_gpu_metrics_t *metrics)
{
    ENTER_DEVICE();
    UNSET(metrics);
    metrics->common_header.structure_size = sizeof *metrics > 0xFFFF ? 0xFFFF : (uint16_t)sizeof *metrics;
    metrics->common_header.format_revision = 1;
    metrics->common_header.content_revision = 8;
    metrics->temperature_hotspot = (uint16_t)temperature_now(slot, AMDSMI_TEMPERATURE_TYPE_HOTSPOT);
    metrics->temperature_mem = (uint16_t)temperature_now(slot, AMDSMI_TEMPERATURE_TYPE_VRAM);
    metrics->temperature_vrsoc = (uint16_t)number("regulator_temperature", slot, 42);
    metrics->average_gfx_activity = (uint16_t)number("utilization_percent", slot, 0);
    metrics->average_umc_activity = (uint16_t)number("memory_utilization_percent", slot, 0);
    metrics->current_socket_power = (uint16_t)ratio_of("power_milliwatts", slot, 140000, 1000);
    metrics->energy_accumulator = energy_ticks(slot);
    metrics->firmware_timestamp = passes(slot) * 100000; /* in 10 ns */
    metrics->system_clock_counter = passes(slot) * (1000000000 / TICKS_PER_SECOND);
    metrics->current_gfxclk = metrics->current_gfxclks[0] = (uint16_t)number("sm_clock_megahertz", slot, 2100);
    metrics->current_uclk = (uint16_t)number("memory_clock_megahertz", slot, 1300);
    metrics->current_socclk = (uint16_t)number("fabric_clock_megahertz", slot, 1700);
    metrics->num_partition = 1;
    put_pcie_metrics(slot, metrics);
    put_residencies(slot, metrics);
    put_link_metrics(slot, metrics);
    return AMDSMI_STATUS_SUCCESS;
}
