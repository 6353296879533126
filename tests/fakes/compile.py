"""How the fake driver libraries are built with gcc: what they share, and what every one exports."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["compile_object", "defined_symbols", "link_library", "run"]

FLAGS = ("-O1", "-fPIC", "-Wall", "-Wextra", "-Werror")

_SCENARIO = Path(__file__).with_name("scenario.c")


def run(*command: str) -> str:
    """Return what *command* prints; raise CalledProcessError where it fails."""
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def compile_object(source: Path, out: Path, *includes: Path) -> Path:
    """Compile the C file *source* into *out*, with warnings as errors."""
    run("gcc", "-c", *FLAGS, *(f"-I{directory}" for directory in includes), str(source), "-o", str(out))
    return out


def defined_symbols(compiled: Path) -> set[str]:
    """Return the names of the functions and objects that *compiled* defines for others."""
    return {line.split()[-1] for line in run("nm", "-g", "--defined-only", str(compiled)).splitlines()}


def link_library(library: Path, fake: Path, *, exported: Iterable[str], stub_names: Iterable[str], code: int) -> Path:
    """Link *fake* and the scenario into *library*, which has exactly the functions *exported*.

    Those of *stub_names* return *code*, which says in the vendor's numbers that the board lacks it.
    """
    work = library.parent
    stubs, exports = work / "stubs.c", work / "exports.map"
    scenario = compile_object(_SCENARIO, work / "scenario.o")
    lines = [f'int {name}(void) __attribute__((alias("not_supported")));' for name in sorted(stub_names)]
    stubs.write_text(
        f"int not_supported(void);\nint not_supported(void) {{ return {code}; }}\n" + "\n".join(lines) + "\n"
    )
    exports.write_text(f"{{ global: {' '.join(f'{name};' for name in sorted(exported))} local: *; }};\n")
    run(
        "gcc", "-shared", *FLAGS, f"-Wl,-soname,{library.name}", f"-Wl,--version-script={exports}",
        str(fake), str(scenario), str(stubs), "-o", str(library), "-lpthread",
    )  # fmt: skip
    return library
