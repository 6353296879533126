"""What is installed is what lies in the tree: packages, facts, styles, types, version and command."""

from __future__ import annotations

import configparser
import email
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import nodevet.agent

FOLDERS = ("agent", "checks", "exporters")
DATA_SUFFIXES = (".csv", ".toml", ".html", ".css", ".js", ".svg", ".sql")
"""Whatever a module reads from beside itself; such a file must be in the wheel."""

TOP = {
    *FOLDERS,
    ".ci",
    ".git-blame-ignore-revs",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
}
TOP |= {"README.md", "benchmarks", "deploy", "docs", "pyproject.toml", "systemd", "tests"}
LARGEST_FILE_BYTES = 256 << 10

NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "var")


class Built(NamedTuple):
    """The two archives built from a copy of the tree, and the names of the files in them."""

    wheel: Path
    wheel_names: frozenset[str]
    sdist_names: frozenset[str]


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Source distribution, and the wheel built out of it, from a copy that leaves the tree untouched."""
    scratch = tmp_path_factory.mktemp("packaging")
    shutil.copytree(repository, scratch / "tree", symlinks=True, ignore=NOT_SOURCE)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(scratch / "dist"), "."]
    done = subprocess.run(command, cwd=scratch / "tree", check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (scratch / "dist").glob("*.whl")
    (sdist,) = (scratch / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as source:
        inside = frozenset(name.partition("/")[2] for name in source.getnames())
        return Built(wheel, frozenset(archive.namelist()), inside)


def _files(repository: Path, *suffixes: str) -> set[str]:
    """Paths below the three folders, as they are named in the wheel."""
    return {
        f"nodevet/{path.relative_to(repository)}"
        for folder in FOLDERS
        for path in (repository / folder).rglob("*")
        if path.suffix in suffixes or path.name in suffixes
    }


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [member for member in archive.namelist() if member.endswith(f".dist-info/{name}")]
        return archive.read(member).decode()


def test_every_package_is_listed(repository: Path, settings: dict[str, Any]) -> None:
    """A new folder with an __init__.py is listed: unlisted it works here and is missing once installed."""
    present = {
        "nodevet." + ".".join(path.parent.relative_to(repository).parts)
        for folder in FOLDERS
        for path in (repository / folder).rglob("__init__.py")
    }
    assert set(settings["tool"]["setuptools"]["packages"]) == present


def test_every_folder_with_modules_is_a_package(repository: Path) -> None:
    """A folder that holds modules but no __init__.py would not be installed."""
    folders = {path.parent for folder in FOLDERS for path in (repository / folder).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_wheel_holds_the_modules_of_the_tree_and_no_others(repository: Path, built: Built) -> None:
    """Modules in the wheel equal those of the tree."""
    assert {name for name in built.wheel_names if name.endswith(".py")} == _files(repository, ".py")


def test_wheel_holds_every_file_that_modules_read(repository: Path, built: Built) -> None:
    """Reference tables, styles and type markers are installed with the modules that read them."""
    wanted = _files(repository, "py.typed", *DATA_SUFFIXES)
    assert wanted - built.wheel_names == set()
    assert {f"nodevet/{folder}/py.typed" for folder in FOLDERS} <= wanted


def test_wheel_holds_nothing_but_the_package(built: Built) -> None:
    """No tests, no units, no top-level module of a common name comes along."""
    assert {name.split("/")[0].split("-")[0] for name in built.wheel_names} == {"nodevet"}


def test_the_tree_holds_nothing_that_a_run_left_behind(repository: Path) -> None:
    """At the top stands what is known to stand there, and no file is larger than a person would write."""
    if not (repository / ".git").exists():
        return  # an archive holds what it was built from
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and (repository / name).exists()]
    assert {name.split("/")[0] for name in names} - TOP == set()
    assert [name for name in names if (repository / name).lstat().st_size > LARGEST_FILE_BYTES] == []


def test_version_is_the_one_of_the_code(built: Built) -> None:
    """The wheel's version is the one that the agent tells."""
    assert email.message_from_string(_metadata(built.wheel, "METADATA"))["Version"] == nodevet.agent.__version__


def test_command_is_installed(built: Built) -> None:
    """The wheel brings the command `nodevet` and no other."""
    entry_points = configparser.ConfigParser()
    entry_points.read_string(_metadata(built.wheel, "entry_points.txt"))
    assert dict(entry_points["console_scripts"]) == {"nodevet": "nodevet.agent.entry:main"}


def test_source_distribution_can_be_tested(built: Built) -> None:
    """The source distribution carries tests, unit and constraints, but not the links for type checkers."""
    wanted = {"tests/conftest.py", "systemd/nodevet.service", ".ci/constraints.txt", "Makefile", "LICENSE"}
    assert wanted <= built.sdist_names
    assert [name for name in built.sdist_names if name.startswith("tests/typing")] == []


def test_constraints_allow_what_the_package_asks_for(repository: Path, settings: dict[str, Any]) -> None:
    """Every dependency that make installs has its version pinned, and the burn-in's torch exactly."""
    lines = (repository / ".ci" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = settings["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["burnin"]]
    assert {requirement.split(">=")[0] for requirement in asked} <= set(pinned)
    assert pinned["torch"] == "2.13.0"
