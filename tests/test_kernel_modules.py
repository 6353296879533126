"""The kernel module in which a process waits: a driver's own is a witness where its file cannot be named."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodevet.agent.readers.blame import _module
from nodevet.agent.readers.kernel_modules import waits_in_module

SYMBOLS = """0000000000000000 T schedule
0000000000000000 t nvidia_close\t[nvidia]
0000000000000000 t release_all\t[nvidia_uvm]
0000000000000000 t free_memory\t[nvidia]
0000000000000000 t free_memory\t[some_nic]
0000000000000000 t open_device
0000000000000000 t open_device\t[nvidia]
0000000000000000 t nvidiafb_open\t[nvidiafb]
0000000000000000 t cut
"""


def tree(folder: Path, stack: str = "", function: str = "0") -> Path:
    """Write what the kernel shows of process 7."""
    (folder / "7").mkdir()
    (folder / "7" / "stack").write_text(stack)
    (folder / "7" / "wchan").write_text(function)
    (folder / "kallsyms").write_text(SYMBOLS)
    return folder


@pytest.mark.parametrize(
    ("function", "is_drivers"),
    [
        *(("nvidia_close", True), ("release_all", True), ("free_memory", False), ("open_device", False)),
        *(
            ("nvidiafb_open", False),
            ("schedule", False),
            ("nowhere", False),
            ("0", False),
            ("", False),
            ("close", False),
        ),
    ],
)
def test_a_function_is_of_a_module_where_no_other_has_its_name(tmp_path: Path, function: str, is_drivers: bool) -> None:
    """The agent's unit may read no stack: the kernel tells the innermost function alone."""
    assert waits_in_module(tree(tmp_path, function=function), 7, "nvidia") is is_drivers


@pytest.mark.parametrize(
    ("stack", "is_drivers"),
    [
        ("[<0>] wait_for_completion+0x1/0x2\n[<0>] close_all+0x3/0x4 [nvidia]\n[<0>] __fput+0x1/0x2\n", True),
        ("[<0>] wait_for_completion+0x1/0x2\n[<0>] close_all+0x3/0x4 [nvidia_modeset]\n", True),
        ("[<0>] nvidia_close+0x1/0x2\n[<0>] close_all+0x3/0x4 [nvme]\n", False),
        ("[<0>] nvidia_close+0x1/0x2\n", False),
    ],
)
def test_a_stack_shows_the_module_of_each_function(tmp_path: Path, stack: str, is_drivers: bool) -> None:
    """The wait itself is mostly in a function of the kernel, below one of the driver's."""
    assert waits_in_module(tree(tmp_path, stack, "nvidia_close"), 7, "nvidia") is is_drivers


def test_a_process_that_is_gone_waits_in_no_module(tmp_path: Path) -> None:
    """Nor does one where the kernel has no list of symbols."""
    assert not waits_in_module(tmp_path, 7, "nvidia")
    tree(tmp_path, function="nvidia_close").joinpath("kallsyms").unlink()
    assert not waits_in_module(tmp_path, 7, "nvidia")


def test_each_vendors_driver_has_its_module() -> None:
    """A backend of a site has none, and no witness of this kind."""
    assert (_module("nvidia"), _module("amd"), _module("fake")) == ("nvidia", "amdgpu", "")
