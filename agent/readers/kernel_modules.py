"""The kernel module of the function in which a process waits: that of a driver is a witness of its own.

Some calls lead to a driver without naming its file: the close of a device node, which the kernel has taken out of the
table of descriptors by then, and the memory of a device.
"""

from __future__ import annotations

import re
from pathlib import Path

from nodevet.checks.system.files import text_of

OF_A_MODULE = re.compile(r"\[(\w+)\]$", re.MULTILINE)
"""The module at the end of a line of /proc/PID/stack; functions of the kernel itself have none."""


def waits_in_module(proc: Path, pid: int, module: str) -> bool:
    """Return whether *pid* waits in *module* or in one whose name begins with it and an underscore (nvidia_uvm).

    Without the right to read the stack, the kernel tells one function (wchan), and /proc/kallsyms its module. A name
    that the kernel or another module has too proves nothing.
    """
    if stack := text_of(proc / str(pid) / "stack"):
        return any(_is_of(name, module) for name in OF_A_MODULE.findall(stack))
    function = text_of(proc / str(pid) / "wchan").strip("\0 \n")
    found = _modules_of(proc, function) if function not in ("", "0") else []
    return bool(found) and all(_is_of(name, module) for name in found)


def _modules_of(proc: Path, function: str) -> list[str]:
    """Return the module of each symbol *function* of /proc/kallsyms; empty text for the kernel itself."""
    try:
        with (proc / "kallsyms").open(errors="replace") as symbols:
            fields = (line.split() for line in symbols if function in line)
            return [row[3].strip("[]") if len(row) > 3 else "" for row in fields if row[2:3] == [function]]
    except OSError:
        return []


def _is_of(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}_")
