"""Fixtures of the fake AMD SMI: the library is built once per run, every test gets a healthy machine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.amdsmi.build import build_fake_amdsmi
from fakes.amdsmi.scenario import FakeAmdSmi

__all__ = ["fake_amdsmi", "fake_amdsmi_library"]


@pytest.fixture(scope="session")
def fake_amdsmi_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a freshly built libamd_smi.so, in the folder ``lib`` of what ``ROCM_PATH`` names."""
    return build_fake_amdsmi(tmp_path_factory.mktemp("fake-rocm"))


@pytest.fixture
def fake_amdsmi(tmp_path: Path, fake_amdsmi_library: Path) -> FakeAmdSmi:
    """A machine of eight healthy MI300X. Start children with ``env={**os.environ, **fake_amdsmi.environment}``."""
    return FakeAmdSmi(tmp_path / "amdsmi.scenario", fake_amdsmi_library)
