"""Writes the C header of the AMD SMI library that the installed Python wrapper expects.

AMD's wrapper carries the structures, prototypes and enumerations of its release as ctypes. This program imports it
on a library of stubs, and prints them as C with the same offsets, so that the compiler checks the fake against
whatever release is installed. Run it in a child of its own: ``python layout.py``, with ``ROCM_PATH`` naming the stubs.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["header"]

SIMPLE = {
    ctypes.c_bool: "uint8_t",
    ctypes.c_char: "char",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_void_p: "void *",
}
"""Types whose C name does not follow from sign and size. A bool has one byte on every system that ROCm runs on."""

SIGNED = (ctypes.c_byte, ctypes.c_short, ctypes.c_int, ctypes.c_long, ctypes.c_longlong)


def header(wrapper: Any) -> str:
    """Return the header of what *wrapper* declares: enumerations, structures, prototypes, and which fields exist."""
    lines = ["#pragma once", "#include <stddef.h>", "#include <stdint.h>", ""]
    for name, value in sorted(vars(wrapper).items()):
        if name.startswith("AMDSMI_") and isinstance(value, int):
            lines.append(f"#define {name} {value:#x}")
    seen: dict[type, str] = {}
    for name, value in list(vars(wrapper).items()):
        if _is_record(value):
            lines += _record(value, seen)
            lines += [f"#define HAS_{name}_{field[0]} 1" for field in value._fields_]
            lines += [f"#define IS_TEXT_{name}_{field[0]} 1" for field in value._fields_ if _is_text(field[1])]
        if _is_record(value) or _is_enumeration(name, value):
            lines += [f"typedef {_c_type(value)} {name};"] if name != value.__name__ else []
    function = type(wrapper.amdsmi_init)
    for _, value in sorted(vars(wrapper).items()):
        if isinstance(value, function) and value.argtypes is not None:
            arguments = ", ".join(_parameter(kind) for kind in value.argtypes) or "void"
            lines.append(f"#define HAS_{value.__name__} 1")
            lines.append(f"{_parameter(value.restype)} {value.__name__}({arguments});")
    return "\n".join(lines) + "\n"


def _is_record(value: object) -> bool:
    return (
        isinstance(value, type) and issubclass(value, (ctypes.Structure, ctypes.Union)) and hasattr(value, "_fields_")
    )


def _is_text(kind: Any) -> bool:
    return hasattr(kind, "_length_") and kind._type_ is ctypes.c_char


def _is_enumeration(name: str, value: object) -> bool:
    return name.startswith("amdsmi_") and isinstance(value, type) and issubclass(value, ctypes._SimpleCData)


def _record(record: Any, seen: dict[type, str]) -> Iterator[str]:
    """Yield the declaration of *record* after those of the records inside it, once each."""
    if record in seen:
        return
    seen[record] = record.__name__
    for field in record._fields_:
        inner = _element(field[1])
        if _is_record(inner):
            yield from _record(inner, seen)
    kind, name = "union" if issubclass(record, ctypes.Union) else "struct", record.__name__
    yield f"typedef {kind} __attribute__((packed)) {{"
    for field in record._fields_:
        bits = f" : {field[2]}" if len(field) > 2 else ""
        yield f"    {_declaration(field[1], field[0])}{bits};"
    yield f"}} {name};"
    yield f'_Static_assert(sizeof({name}) == {ctypes.sizeof(record)}, "{name}");'
    for field in record._fields_:
        if len(field) == 2:
            place = getattr(record, field[0]).offset
            yield f'_Static_assert(offsetof({name}, {field[0]}) == {place}, "{name}.{field[0]}");'


def _element(kind: Any) -> Any:
    while hasattr(kind, "_length_"):
        kind = kind._type_
    return kind


def _declaration(kind: Any, name: str) -> str:
    lengths = ""
    while hasattr(kind, "_length_"):
        lengths += f"[{kind._length_}]"
        kind = kind._type_
    return f"{_c_type(kind)} {name}{lengths}"


def _parameter(kind: Any) -> str:
    return "void" if kind is None else f"{_c_type(_element(kind))} *" if hasattr(kind, "_length_") else _c_type(kind)


def _c_type(kind: Any) -> str:
    if kind in SIMPLE:
        return SIMPLE[kind]
    if _is_record(kind):
        return str(kind.__name__)
    if issubclass(kind, ctypes._Pointer):
        target = vars(kind)["_type_"]
        return "void *" if target is None else f"{_c_type(_element(target))} *"
    if issubclass(kind, ctypes._SimpleCData):
        return f"{'int' if kind in SIGNED else 'uint'}{ctypes.sizeof(kind) * 8}_t"
    return "void *"


if __name__ == "__main__":
    sys.stdout.write(header(importlib.import_module("amdsmi.amdsmi_wrapper")))
