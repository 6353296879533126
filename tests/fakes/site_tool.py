"""A command of a site for tests: a program that prints what a file beside it holds, and documents for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["SettableTool", "device", "document", "program", "reading", "temperature"]


def reading(quantity: str, value: object = None, **more: object) -> dict[str, Any]:
    """Return a reading as a command prints it."""
    return {"quantity": quantity, **({} if value is None else {"value": value}), **more}


def temperature(celsius: object) -> dict[str, Any]:
    """Return the temperature of a core."""
    return reading("temperature_celsius", celsius, part={"kind": "sensor", "name": "core"})


def device(name: str, *readings: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return a device of a vendor that nobody knows; without *readings* it has a healthy temperature."""
    told = list(readings) or [temperature(45)]
    told = [] if "failure" in more else told
    return {"id": name, "kind": "accelerator", "vendor": "acme", "model": "X1", "readings": told, **more}


def document(*devices: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return the document of *devices*."""
    return {"schema": "nodevet.readings/1", "devices": list(devices), **more}


def program(path: Path, text: str) -> Path:
    """Write an executable program."""
    path.write_text(text)
    path.chmod(0o755)
    return path


class SettableTool:
    """A command that prints its file, which a test changes while it runs; a file per group where there is one."""

    def __init__(self, directory: Path) -> None:
        """Write the program into *directory*."""
        self._file = directory / "printed"
        self.program = program(
            directory / "tool",
            f"#!/bin/sh\nfile={self._file}\n[ -e $file.$NODEVET_GROUP ] && file=$file.$NODEVET_GROUP\nexec cat $file\n",
        )

    def print(self, *devices: dict[str, Any], group: str | None = None, **more: object) -> None:
        """Print a document of *devices* from now on."""
        file = self._file if group is None else self._file.with_name(f"{self._file.name}.{group}")
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(document(*devices, **more)))
        fresh.rename(file)
