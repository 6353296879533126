"""Builds the fake libnvidia-ml.so.1 with gcc against the header of NVIDIA's own wheel.

The header (from ``nvidia-nvml-dev-cu12``) makes the compiler check every signature that the fake defines. All other
functions of the header exist too and return ``NVML_ERROR_NOT_SUPPORTED``, as boards do for what they lack. Those of
them that give one unsigned number of a device return the number that a test sets under the name of the function:
``set("nvmlDeviceGetFanSpeed.0", 30)``. A variant without some symbols plays an older driver, whose library does not
have them at all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from fakes.compile import compile_object, defined_symbols, link_library, run

__all__ = ["LIBRARY", "build_fake_nvml", "header_directory", "lacking", "plain"]

LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3

_SOURCE = Path(__file__).with_name("fake_nvml.c")

_PLAIN = r"\b(nvmlDeviceGet\w+)\s*\(nvmlDevice_t device, unsigned int \*\s*\w+\)"
"""A function of the header that gives one unsigned number of a device."""

_PLAIN_MACRO = """\
#define PLAIN(function)                                             \\
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) \\
    {                                                               \\
        ENTER_DEVICE();                                             \\
        long long set = number(#function, slot, -1);                \\
        if (set < 0) return NVML_ERROR_NOT_SUPPORTED;               \\
        *value = (unsigned)set;                                     \\
        return NVML_SUCCESS;                                        \\
    }
"""


def header_directory() -> Path:
    """Return the directory of nvml.h; raise FileNotFoundError where the wheel is not installed."""
    found = find_spec("nvidia")
    for place in (found.submodule_search_locations or ()) if found else ():
        directory = Path(place) / "nvml_dev" / "include"
        if (directory / "nvml.h").is_file():
            return directory
    raise FileNotFoundError("nvml.h is missing: install the dependency group 'test' (nvidia-nvml-dev-cu12)")


def build_fake_nvml(out_dir: Path, missing: Iterable[str] = ()) -> Path:
    """Build the library into *out_dir* without the symbols *missing* and return its path.

    Raise FileNotFoundError without gcc or header, CalledProcessError where the source does not fit the header.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    source = out_dir / "fake_nvml.c"
    source.write_text(f'#include "{_SOURCE}"\n{_PLAIN_MACRO}' + "".join(f"PLAIN({name})\n" for name in sorted(plain())))
    fake = compile_object(source, out_dir / "fake_nvml.o", header_directory())
    declared, defined = _declared(), defined_symbols(fake)
    unknown = set(missing) - declared
    if unknown:
        raise ValueError(f"the header declares no {', '.join(sorted(unknown))}")
    functions = declared | {name for name in defined if name.startswith("nvml")}
    return link_library(
        out_dir / LIBRARY,
        fake,
        exported=functions - set(missing),
        stub_names=declared - defined,
        code=NOT_SUPPORTED,
    )


def lacking() -> set[str]:
    """Return the functions that the boards of the fake lack unless a test sets a value: those not in its C source."""
    return _declared() - set(re.findall(r"\bnvml\w+", _SOURCE.read_text()))


def plain() -> set[str]:
    """Return those of the lacking functions that return the number that a test sets under their name."""
    return lacking() & set(re.findall(_PLAIN, _header()))


def _declared() -> set[str]:
    """Return every function of the header, in all its versions."""
    return set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", _header()))


@functools.cache
def _header() -> str:
    return run("gcc", "-E", "-P", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", str(header_directory() / "nvml.h"))
