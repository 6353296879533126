"""Libraries that are loaded when they are used, and not when another library imports them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from nodevet.agent.daemon.later import loaded_later


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
