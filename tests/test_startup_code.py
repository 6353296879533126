"""Code that Python runs in every program: files of a site's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodevet.agent.readers.startup_code import startup_code
from nodevet.agent.readers.witness import Surroundings

FILES = {
    "profiler.pth": ("import start_profiler\n", True),
    "after-a-folder.pth": ("/opt/lib\nimport\tstart_profiler\n", True),
    "folders.pth": ("/opt/lib\nimportant\n# import start_profiler\n", False),
    "distutils-precedence.pth": ("import os; __import__('_distutils_hack').add_shim()\n", False),
    "__editable__.nodevet-0.1.0.pth": ("import __editable___nodevet_0_1_0_finder\n", False),
    "empty.pth": ("", False),
    "profiler.txt": ("import start_profiler\n", False),
    "sitecustomize.py": ("import ddtrace.bootstrap.sitecustomize\n", True),
    "sitecustomize.txt": ("import start_profiler\n", False),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_whose_code_runs_in_every_python_is_seen(tmp_path: Path, name: str) -> None:
    """But for those that are known to load nothing native."""
    text, is_seen = FILES[name]
    (tmp_path / name).write_text(text)
    assert startup_code([str(tmp_path / "absent"), str(tmp_path)]) == (str(tmp_path / name) if is_seen else "")


APPORT = """# install the apport exception handler if available
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""


@pytest.mark.parametrize(
    ("text", "is_seen"), [("", False), ("# nothing\n", False), (APPORT, False), (APPORT + "import tracer\n", True)]
)
def test_sitecustomize_of_a_distribution_loads_nothing(tmp_path: Path, text: str, is_seen: bool) -> None:
    """Ubuntu's reports crashes of Python programs; a line of a site in it is seen."""
    path = tmp_path / "sitecustomize.py"
    path.write_text(text)
    assert startup_code([str(tmp_path)]) == (str(path) if is_seen else "")


def test_a_crash_beside_such_code_may_be_its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a library that the linker puts into every program: the file is named."""
    (tmp_path / "profiler.pth").write_text("import start_profiler\n")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    words = Surroundings(preloads=tmp_path / "absent").preloaded()
    assert words.startswith(
        f"{tmp_path}/profiler.pth runs code in every program of this Python, which may be the cause"
    )
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path / "absent")])
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path / "absent"))
    assert Surroundings(preloads=tmp_path / "absent").preloaded() == ""
