"""JSON from outside: whatever is none is one kind of error, wherever it is read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fakes.episodes import BOOT_ID
from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.config.load import load_configuration
from nodevet.agent.slurm.memory import Kept, load_memory, save_memory
from nodevet.checks.core.documents import DEEPEST_TABLES, decoded, decoded_toml
from nodevet.checks.core.errors import ConfigurationError, UsageError
from nodevet.checks.reference.profiles import load_profile
from nodevet.checks.simulation.scenario import parse_scenario
from nodevet.exporters.report.document import read_document
from nodevet.exporters.slurm.rules import WriterMemory

NO_TEXT = b'{"schema":"nodevet.status/1","boot_id":"\xff"}'
WITHOUT_END = b'{"schema":' + b"[" * 200_000


@given(st.binary())
def test_whatever_is_no_document_is_one_error(content: bytes) -> None:
    """Text that is not UTF-8 and nesting without end are not left to Python's own errors."""
    for told in (content, b'{"a":"' + content + b'"}', WITHOUT_END, NO_TEXT):
        try:
            decoded(told, dict[str, object])
        except msgspec.DecodeError:
            continue


def test_a_memory_that_is_no_text_is_absent(tmp_path: Path) -> None:
    """The writer to SLURM goes on with what the store has; before, the agent ended at each start."""
    path = tmp_path / "slurm.json"
    save_memory(path, Kept(BOOT_ID, WriterMemory()))
    for content in (NO_TEXT, WITHOUT_END, path.read_bytes().replace(b"a", b"\xff", 1)):
        path.write_bytes(content)
        assert load_memory(path, None, BOOT_ID).memory == WriterMemory()
    path.unlink()
    path.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert load_memory(path, None, BOOT_ID).memory == WriterMemory()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("content", [NO_TEXT, WITHOUT_END])
def test_a_report_of_what_is_no_text_is_refused_in_words(content: bytes) -> None:
    """One line instead of a traceback."""
    with pytest.raises(UsageError, match="is not a report document"):
        read_document(content)


@pytest.mark.parametrize("levels", [900, 5_000])
@pytest.mark.parametrize(
    "shape", ["[{names}]\nx = 1", "{names} = 1", "[load]\n{names} = 1", "title.{names} = 1", "x = {lists}"]
)
def test_tables_without_end_are_refused_in_words(shape: str, levels: int, tmp_path: Path) -> None:
    """A dotted name makes tables of any depth, which ended a command with a traceback that called it a bug."""
    path = tmp_path / "deep.toml"
    text = shape.format(names=".".join("a" * levels), lists="[" * levels + "]" * levels)
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"^[^\n]*: not valid TOML: [^\n]*$"):
        load_configuration(path, ())
    with pytest.raises(ConfigurationError, match=r"^deep: not valid TOML: [^\n]*$"):
        parse_scenario(text, "deep", load_profile("cpu-node"))


def test_tables_are_read_to_the_depth_that_is_said() -> None:
    """One more is refused."""
    decoded_toml(".".join("a" * DEEPEST_TABLES) + " = 1")
    with pytest.raises(ValueError, match=f"more than {DEEPEST_TABLES} deep"):
        decoded_toml(".".join("a" * (DEEPEST_TABLES + 1)) + " = 1")
