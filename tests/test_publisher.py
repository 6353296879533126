"""State file and mirror: what happens to one does not keep the other back."""

from __future__ import annotations

from pathlib import Path

from fakes.snapshots import failed_node

from nodevet.agent.publisher import STATE_NAME, Publisher
from nodevet.agent.storage.mirror import MIRROR_NAME


def test_a_mirror_that_cannot_be_written_keeps_no_fault_out_of_the_state_file(tmp_path: Path) -> None:
    """An `ok` of before must not stand in the state file because something is wrong with another file."""
    (tmp_path / f".{MIRROR_NAME}.new").mkdir()
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.publish(failed_node())
    assert publisher.close(5.0)
    assert (tmp_path / STATE_NAME).read_text().startswith("failed ")
    assert MIRROR_NAME in publisher.failure


def test_a_state_file_that_cannot_be_written_keeps_nothing_out_of_the_mirror(tmp_path: Path) -> None:
    """Both are told of in one line."""
    (tmp_path / STATE_NAME).symlink_to(tmp_path / "elsewhere")
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.publish(failed_node())
    assert publisher.close(5.0)
    assert (tmp_path / MIRROR_NAME).exists()
    assert "symbolic link" in publisher.failure
