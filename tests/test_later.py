"""Libraries that are loaded when they are used, and not when another library imports them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from nodevet.checks.core import later
from nodevet.checks.core.later import loaded_later


def test_a_library_is_loaded_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imported a stand-in has the library all the same; whoever imports it afterwards gets itself."""
    (tmp_path / "heavy_one.py").write_text("answer = 42\n")
    (tmp_path / "its_user.py").write_text("import heavy_one\ndef ask(): return heavy_one.answer\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loaded_later("heavy_one", "sys"):
        user = importlib.import_module("its_user")
        assert "answer" not in vars(sys.modules["heavy_one"])
        assert importlib.import_module("sys") is sys, "what is loaded already is left alone"
    try:
        assert "heavy_one" not in sys.modules
        assert user.ask() == 42
        assert "answer" in vars(importlib.import_module("heavy_one"))
    finally:
        del sys.modules["heavy_one"], sys.modules["its_user"]


def test_a_library_that_is_used_at_once_is_loaded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later release of what imports it may do so."""
    (tmp_path / "heavy_two.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loaded_later("heavy_two"):
        stand_in = importlib.import_module("heavy_two")
        assert stand_in.answer == 42
        assert importlib.import_module("heavy_two") is not stand_in
    assert sys.modules.pop("heavy_two").answer == 42


def test_a_module_gets_what_is_known_of_a_library_that_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asks for the same name otherwise gets the library's."""
    (tmp_path / "heavy_three.py").write_text("answer = 42\n")
    (tmp_path / "its_asker.py").write_text("from heavy_three import answer\n")
    (tmp_path / "its_other.py").write_text("from heavy_three import answer\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with loaded_later("heavy_three", known={("its_asker", "heavy_three.answer"): 7}):
            assert importlib.import_module("its_asker").answer == 7
            assert "answer" not in vars(sys.modules["heavy_three"])
            assert importlib.import_module("its_other").answer == 42
    finally:
        for name in ("heavy_three", "its_asker", "its_other"):
            sys.modules.pop(name, None)


AGENT = """
import sys
before = set(sys.modules)  # what an editable installation imports
sys.modules["typing_extensions"] = None  # a package of developers, which msgspec prefers
from nodevet.agent.cli import _module, main
from nodevet.checks.core.later import SELDOM
_module("agent").run.__globals__["options"].configuration = lambda *_given, **_named: sys.exit(0)
try:
    main(["agent"])
except SystemExit:
    pass
from nodevet.exporters.metrics.prometheus import _page_encoder
from nodevet.checks.engine.registry import installed
_page_encoder()
installed()
rest = {"agent.simulated.node", "agent.slurm.reactor", "checks.backends.command.backend", "exporters.web.page.content"}
rest = {f"nodevet.{name}" for name in rest} | {"_hashlib", "_ssl", "linecache", "pickle", "prometheus_client.decorator"}
print(*sorted({*SELDOM, *rest} & sys.modules.keys() - before))
import prometheus_client.context_managers as timers, prometheus_client.exposition as pages, ssl
assert pages.ssl.SSLContext is ssl.SSLContext
import inspect
for protocol, user in (("SERVER", pages.start_http_server), ("CLIENT", pages.tls_auth_handler)):
    assert inspect.signature(user).parameters["protocol"].default == getattr(ssl, f"PROTOCOL_TLS_{protocol}")
assert timers.decorate(lambda given, *a, **k: given(*a, **k), lambda: 42) is not None
"""

CHILD = """
import sys
before = set(sys.modules)
import nodevet.checks.backends.reader_main
import nodevet.checks.backends.host.backend
from nodevet.checks.backends.nvidia.nvml import _import
_import()
unused = {"base64", "glob", "ipaddress", "linecache", "locale", "msgspec._json_schema", "msgspec.inspect", "platform"}
unused |= {"shutil", "subprocess", "tempfile", "urllib.parse", "zlib"}
print(*sorted(unused & sys.modules.keys() - before))
import msgspec, pathlib, platform, traceback, uuid
assert pathlib.Path("/a b").as_uri() == "file:///a%20b"
assert msgspec.json.schema(int) == {"type": "integer"}
assert msgspec.json.schema_components([int])[0] == ({"type": "integer"},)
assert uuid._LINUX == (platform.system() == "Linux")
try:
    pathlib.Path("/").read_text()
except OSError as error:
    assert ", in open" in "".join(traceback.format_exception(error))
    assert "return io.open" in "".join(traceback.format_exception(error))
"""


@pytest.mark.parametrize("program", [AGENT, CHILD], ids=["agent", "collector"])
def test_what_costs_memory_and_is_not_used_is_not_loaded(program: str) -> None:
    """A library that asks for more while it is imported, as a new version may, works and costs memory."""
    home = str(Path(later.__file__).parents[3])  # of the package that is tested, which may be a copy
    start = f"import sys; sys.path.insert(0, {home!r})"
    argv = [sys.executable, "-I", "-c", f"{start}\n{program}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
