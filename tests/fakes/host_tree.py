"""Trees of /proc and /sys as small machines would show them, written for the tests."""

from __future__ import annotations

from pathlib import Path

CPU = "sys/devices/system/cpu"
HWMON = "sys/class/hwmon"
EDAC = "sys/devices/system/edac/mc"
PCI = "sys/bus/pci/devices"

LINK = "-> "
"""A file whose text begins so is a symbolic link to the rest."""

Files = dict[str, str]


def write_tree(root: Path, files: Files) -> Path:
    """Write *files* below *root* and return it."""
    for relative, text in files.items():
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith(LINK):
            path.unlink(missing_ok=True)
            path.symlink_to(text.removeprefix(LINK))
        else:
            path.write_text(text)
    return root


def node_files(memory_kilobytes: int = 1_000_000, available_kilobytes: int = 750_000) -> Files:
    """What every Linux has: memory, load, uptime, boot id, release."""
    return {
        "proc/meminfo": (
            f"MemTotal:       {memory_kilobytes} kB\nMemFree:         1000 kB\n"
            f"MemAvailable:   {available_kilobytes} kB\nHugePages_Total:       0\n"
        ),
        "proc/loadavg": "4.00 3.00 2.00 1/999 12345\n",
        "proc/uptime": "86400.50 600000.00\n",
        "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
        "proc/sys/kernel/osrelease": "6.1.0-test\n",
    }


def processor_files(sockets: int, cores: int, threads: int, *, vendor: str, model: str) -> Files:
    """Processors numbered as Intel and AMD firmware does: the second threads come after all first threads."""
    files: Files = {}
    entries = []
    for number in range(sockets * cores * threads):
        package, core = number // cores % sockets, number % cores
        entries.append(
            f"processor\t: {number}\nvendor_id\t: {vendor}\nmodel name\t: {model}\nmicrocode\t: 0x2b0004d0\n"
            f"physical id\t: {package}\ncore id\t\t: {core}\n"
        )
        files[f"{CPU}/cpu{number}/topology/physical_package_id"] = f"{package}\n"
        files[f"{CPU}/cpu{number}/topology/core_id"] = f"{core}\n"
    files["proc/cpuinfo"] = "\n".join(entries)
    for package in range(sockets):
        listing = [str(n) for n in range(sockets * cores * threads) if n // cores % sockets == package]
        files[f"sys/devices/system/node/node{package}/cpulist"] = ",".join(listing) + "\n"
    return files


def server() -> Files:
    """A healthy server: two Intel sockets of two cores with two threads, sensors, EDAC, GPUs of two vendors."""
    files = node_files() | processor_files(2, 2, 2, vendor="GenuineIntel", model="Xeon Test 8000")
    for number in range(8):
        cpu = f"{CPU}/cpu{number}"
        files |= {
            f"{cpu}/cpufreq/scaling_cur_freq": f"{2_000_000 + 100_000 * (number % 2)}\n",
            f"{cpu}/cpufreq/cpuinfo_max_freq": "3800000\n",
            f"{cpu}/cpufreq/scaling_driver": "intel_pstate\n",
            f"{cpu}/thermal_throttle/core_throttle_count": f"{number}\n",
            f"{cpu}/thermal_throttle/core_throttle_total_time_ms": f"{100 * number}\n",
            f"{cpu}/thermal_throttle/package_throttle_count": "7\n",
            f"{cpu}/thermal_throttle/package_throttle_total_time_ms": "1500\n",
        }
    for socket in range(2):
        chip = f"{HWMON}/hwmon{socket + 3}"
        files |= {
            f"{chip}/name": "coretemp\n",
            f"{chip}/device": f"{LINK}../../../devices/platform/coretemp.{socket}",
            f"sys/devices/platform/coretemp.{socket}/modalias": "platform:coretemp\n",
            f"{chip}/temp1_label": f"Package id {socket}\n",
            f"{chip}/temp1_input": f"{50 + socket}000\n",
            f"{chip}/temp1_max": "84000\n",
            f"{chip}/temp1_crit": "100000\n",
            f"{chip}/temp2_label": "Core 0\n",
            f"{chip}/temp2_input": "48000\n",
            f"{EDAC}/mc{socket}/mc_name": "Intel_10nm Socket\n",
            f"{EDAC}/mc{socket}/ce_count": f"{socket * 3}\n",
            f"{EDAC}/mc{socket}/ue_count": "0\n",
            f"{EDAC}/mc{socket}/ce_noinfo_count": "0\n",
            f"{EDAC}/mc{socket}/ue_noinfo_count": "0\n",
        }
    return files | {
        f"{HWMON}/hwmon0/name": "acpitz\n",
        f"{HWMON}/hwmon0/temp1_input": "30000\n",
        "sys/class/dmi/id/sys_vendor": "Test Systems\n",
        "sys/class/dmi/id/product_name": "TS-2\n",
        "sys/class/dmi/id/product_serial": "S123\n",
        "sys/class/dmi/id/bios_version": "1.2.3\n",
        **pci_device("0000:10:00.0", "0x10de", "0x2330", "0x030200", driver="nvidia", node=0),
        **pci_device("0000:90:00.0", "0x1002", "0x74a1", "0x120000", node=1),
        **pci_device("0000:03:00.0", "0x1a03", "0x2000", "0x030000", driver="ast"),
    }


def virtual_machine() -> Files:
    """A virtual machine: processors and memory, no sensor, no counter, no controller."""
    return node_files() | processor_files(1, 2, 1, vendor="AuthenticAMD", model="EPYC Test")


def amd_server() -> Files:
    """Two AMD sockets whose sensors are told apart by the NUMA node of their chip."""
    files = node_files() | processor_files(2, 2, 1, vendor="AuthenticAMD", model="EPYC Test 9000")
    for chip, node in ((1, 1), (2, 0)):  # the chips are not in the order of the sockets
        folder = f"{HWMON}/hwmon{chip}"
        files |= {
            f"{folder}/name": "k10temp\n",
            f"{folder}/device/numa_node": f"{node}\n",
            f"{folder}/temp1_label": "Tctl\n",
            f"{folder}/temp1_input": f"{70 + node}000\n",
            f"{folder}/temp3_label": "Tccd1\n",
            f"{folder}/temp3_input": "65000\n",
        }
    return files


def pci_device(
    address: str, vendor: str, device: str, class_code: str, *, driver: str | None = None, node: int = -1
) -> Files:
    """One function on the PCI bus."""
    folder = f"{PCI}/{address}"
    files = {
        f"{folder}/vendor": f"{vendor}\n",
        f"{folder}/device": f"{device}\n",
        f"{folder}/class": f"{class_code}\n",
        f"{folder}/numa_node": f"{node}\n",
    }
    if driver is not None:
        files[f"{folder}/driver"] = f"{LINK}../../../../bus/pci/drivers/{driver}"
    return files
