"""Fixtures of the fake NVML: the library is built once per run, every test gets a healthy machine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.nvml.build import build_fake_nvml
from fakes.nvml.scenario import FakeNvml

__all__ = ["fake_nvml", "fake_nvml_library"]


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a freshly built libnvidia-ml.so.1."""
    return build_fake_nvml(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def fake_nvml(tmp_path: Path, fake_nvml_library: Path) -> FakeNvml:
    """A machine of eight healthy H100. Start children with ``env={**os.environ, **fake_nvml.environment}``."""
    return FakeNvml(tmp_path / "nvml.scenario", fake_nvml_library)
