"""A file of nodevet that an upgrade replaces before the running agent has loaded it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.gpu_node import TextNode
from fakes.host_tree import virtual_machine, write_tree

from nodevet.checks.core.guard import PartFault, fault_findings

REPOSITORY = Path(__file__).parents[1]


def own_installation(folder: Path) -> tuple[Path, Path]:
    """Return an interpreter with a copy of nodevet of its own, and the folder of this copy."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    for part in ("agent", "checks", "exporters"):
        shutil.copytree(REPOSITORY / part, site / "nodevet" / part, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "nodevet" / "__init__.py").touch()
    libraries = next(entry for entry in sys.path if entry.endswith("site-packages"))
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({libraries!r})\n")
    return folder / "bin" / "python", site / "nodevet"


@pytest.mark.parametrize(
    ("error", "is_bug"),
    [("ModuleNotFoundError: No module named 'x'", False), ("SyntaxError: x", False), ("KeyError: 1", True)],
)
def test_a_missing_file_of_nodevet_is_no_bug(error: str, is_bug: bool) -> None:
    """It is the state between two releases: the next step is to restart or reinstall."""
    (finding,) = fault_findings((PartFault("page /metrics", 1, error),))
    assert ("bug in nodevet" in finding.message) is is_bug
    assert ("restart the agent after an upgrade" in finding.message) is not is_bug


def test_a_page_whose_code_an_upgrade_took_away_is_no_bug(tmp_path: Path, fake_nvml_library: Path) -> None:
    """As of a reader in the same upgrade: install it anew or restart the agent, instead of a report to nobody."""
    python, package = own_installation(tmp_path / "own")
    root = write_tree(tmp_path / "root", virtual_machine())
    node = TextNode(tmp_path, fake_nvml_library, root=str(root))
    node.machine.fail("nvmlInitWithFlags", 9).fail("nvmlInit_v2", 9)
    node.python = str(python)
    with node:
        (package / "exporters" / "metrics" / "encoding.py").unlink()
        node.get("/metrics")
        told = node.wait_for_finding("agent.error", 10.0)["message"]
        assert "encoding" in told
        assert "bug in nodevet" not in told, told
