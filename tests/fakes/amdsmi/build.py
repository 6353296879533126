"""Builds the fake libamd_smi.so with gcc for the AMD SMI wrapper that is installed here.

The wrapper binds all its symbols while it is imported, so the library must have every one of them. Their names are
found in the wrapper's text; a library of stubs then lets a child import it, and `layout.py` in that child writes the
C header of the same release: so the fake fits the wrappers of 6.3, 6.4 and 7.0 alike. What the fake does not define
returns ``AMDSMI_STATUS_NOT_SUPPORTED``. A variant without some symbols plays the library of another ROCm release.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from fakes.compile import compile_object, defined_symbols, link_library

__all__ = ["LIBRARY", "bound_symbols", "build_fake_amdsmi"]

LIBRARY = "libamd_smi.so"
NOT_SUPPORTED = 2

_SOURCE = Path(__file__).with_name("fake_amdsmi.c")
_LAYOUT = Path(__file__).with_name("layout.py")


def bound_symbols() -> set[str]:
    """Return the functions that the installed wrapper binds; raise FileNotFoundError where none is installed."""
    found = find_spec("amdsmi")
    places = (found.submodule_search_locations or ()) if found else ()
    for wrapper in (Path(place) / "amdsmi_wrapper.py" for place in places):
        if wrapper.is_file():
            return set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper.read_text(encoding="utf-8")))
    raise FileNotFoundError("amdsmi_wrapper.py is missing: install the dependency group 'test' (amdsmi)")


def build_fake_amdsmi(out_dir: Path, missing: Iterable[str] = ()) -> Path:
    """Build ``lib/libamd_smi.so`` in *out_dir* without the symbols *missing*, and return its path.

    *out_dir* is then what ``ROCM_PATH`` names. Raise FileNotFoundError without gcc or wrapper, ValueError for a
    symbol that the wrapper does not bind, CalledProcessError where the source does not fit the wrapper.
    """
    bound = bound_symbols()
    unknown = set(missing) - bound
    if unknown:
        raise ValueError(f"the wrapper binds no {', '.join(sorted(unknown))}")
    libraries = out_dir / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    (libraries / "amdsmi_layout.h").write_text(_header(out_dir / "stubs", bound), encoding="ascii")
    fake = compile_object(_SOURCE, libraries / "fake_amdsmi.o", libraries)
    defined = defined_symbols(fake)
    return link_library(
        libraries / LIBRARY, fake, exported=bound - set(missing), stub_names=bound - defined, code=NOT_SUPPORTED
    )


def _header(directory: Path, bound: set[str]) -> str:
    """Return the header of the installed wrapper, which a child imports on a library of stubs."""
    libraries = directory / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    empty = libraries / "empty.c"
    empty.write_text("const char *const scenario_variable = 0, *const scenario_log_variable = 0;\n", encoding="ascii")
    compiled = compile_object(empty, libraries / "empty.o")
    link_library(libraries / LIBRARY, compiled, exported=bound, stub_names=bound, code=NOT_SUPPORTED)
    environment = {**os.environ, "ROCM_HOME": str(directory), "ROCM_PATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-I", str(_LAYOUT)], env=environment, check=True, text=True, stdout=subprocess.PIPE
    )
    return done.stdout
