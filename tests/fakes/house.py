"""The plan of the house: its rooms and floors, who imports whom, and the table of them in the docs."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "FLOORS",
    "FOLDERS",
    "Import",
    "Module",
    "drawing",
    "imports_of",
    "modules",
    "parsed",
    "room_of",
    "rooms_table",
    "within",
]

FOLDERS = ("agent", "checks", "exporters")


def _floors() -> tuple[tuple[str, ...], ...]:
    """Return the rooms of each floor from the ground up, as the contract of import-linter has them.

    The ground floor is the three folders themselves, which hold a docstring and a version.
    """
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [layer.replace("nodevet.", "").split(" | ") for layer in contract["layers"]]
    return FOLDERS, *map(tuple, reversed(layers))


FLOORS = _floors()
"""The rooms from the ground up: a module imports its own room or one of a lower floor, and none beside it."""


class Module(NamedTuple):
    """A parsed file under its name without the `nodevet.` in front."""

    name: str
    is_package: bool
    source: str
    tree: ast.Module


class Import(NamedTuple):
    """An import of `target` in a line; our own targets stand without `nodevet.`, and `ours` is set."""

    target: str
    line: int
    ours: bool
    at_top: bool


def parsed(name: str, source: str, is_package: bool = False) -> Module:
    """Return the module *name*, whose text is *source*."""
    return Module(name, is_package, source, ast.parse(source))


def modules(repository: Path) -> Iterator[Module]:
    """Yield every module of the three folders."""
    for folder in FOLDERS:
        for path in sorted((repository / folder).rglob("*.py")):
            parts = path.relative_to(repository).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield parsed(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


def within(name: str, package: str) -> bool:
    """Return whether the module *name* is *package* or stands in it."""
    return name == package or name.startswith(package + ".")


def room_of(name: str) -> tuple[int, str]:
    """Return the floor and the room of a module, by the longest name of a room that it is within."""
    rooms = [(floor, room) for floor, beside in enumerate(FLOORS) for room in beside if within(name, room)]
    return max(rooms, key=lambda found: len(found[1]))


def imports_of(module: Module) -> Iterator[Import]:
    """Every import of a module, wherever it stands, relative ones resolved."""
    in_functions = {
        id(node)
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from package import x` may import a module x or a name x: the longer spelling decides its floor.
            base = _resolve(module, node)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            ours = within(target, "nodevet")
            yield Import(target.removeprefix("nodevet."), node.lineno, ours, id(node) not in in_functions)


def _resolve(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = f"nodevet.{module.name}".split(".")
    parents = package if module.is_package else package[:-1]
    base = parents[: len(parents) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def drawing() -> str:
    """Return the floors as a picture of text: a room may import what is drawn below it, and nothing beside it."""
    rows: list[tuple[str, str]] = []
    for floor in range(len(FLOORS) - 1, 0, -1):
        folders = {room.split(".")[0] for room in FLOORS[floor]}
        (folder,) = folders
        rooms = " | ".join(room.removeprefix(f"{folder}.") for room in FLOORS[floor])
        rows.append(("" if any(folder == known for known, _ in rows) else folder, rooms))
    return "\n".join(["```text", *(f"{folder:<11}{rooms}" for folder, rooms in rows), "```"]) + "\n"


def rooms_table(repository: Path) -> str:
    """Return the rooms from the top floor down: what each is, how many modules it has, and which rooms it imports."""
    found = list(modules(repository))
    docs = {entry.name: (ast.get_docstring(entry.tree) or "").partition("\n")[0] for entry in found}
    lines = ["| Layer | Package | What it is | Modules | Imports |", "|---|---|---|---|---|"]
    for floor in range(len(FLOORS) - 1, 0, -1):
        for room in FLOORS[floor]:
            inside = [entry for entry in found if room_of(entry.name) == (floor, room)]
            targets = {room_of(entry.target)[1] for one in inside for entry in imports_of(one) if entry.ours}
            below = ", ".join(f"`{name}`" for name in sorted(targets - {room, *FOLDERS}))
            count = sum(not entry.is_package for entry in inside)
            lines.append(f"| {floor} | `{room}` | {docs[room]} | {count} | {below} |")
    return "\n".join(lines) + "\n"
