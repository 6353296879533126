"""Builds the fake libnvidia-ml.so.1 with gcc against the header of NVIDIA's own wheel.

The header (from ``nvidia-nvml-dev-cu12``) makes the compiler check every signature that the fake defines. All other
functions of the header exist too and return ``NVML_ERROR_NOT_SUPPORTED``, as boards do for what they lack. A variant
without some symbols plays an older driver, whose library does not have them at all.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

__all__ = ["LIBRARY", "build_fake_nvml", "header_directory"]

LIBRARY = "libnvidia-ml.so.1"

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_STUBS = "int not_supported(void);\nint not_supported(void) { return 3; }\n"
_FLAGS = ("-O1", "-fPIC", "-Wall", "-Wextra", "-Werror")


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
    fake, stubs, exports = out_dir / "fake_nvml.o", out_dir / "stubs.c", out_dir / "exports.map"
    _run("gcc", "-c", *_FLAGS, f"-I{header_directory()}", str(_SOURCE), "-o", str(fake))
    declared = _declared()
    unknown = set(missing) - declared
    if unknown:
        raise ValueError(f"the header declares no {', '.join(sorted(unknown))}")
    lines = [f'int {name}(void) __attribute__((alias("not_supported")));' for name in sorted(declared - _defined(fake))]
    stubs.write_text(_STUBS + "\n".join(lines) + "\n")
    hidden = "".join(f" {name};" for name in sorted({"not_supported", *missing}))
    exports.write_text(f"{{ global: nvml*; local:{hidden} }};\n")
    library = out_dir / LIBRARY
    _run(
        "gcc", "-shared", *_FLAGS, f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={exports}",
        str(fake), str(stubs), "-o", str(library), "-lpthread",
    )  # fmt: skip
    return library


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def _declared() -> set[str]:
    """Return every function of the header, in all its versions."""
    text = _run("gcc", "-E", "-P", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", str(header_directory() / "nvml.h"))
    return set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", text))


def _defined(fake: Path) -> set[str]:
    return {line.split()[-1] for line in _run("nm", "-g", "--defined-only", str(fake)).splitlines()}
