"""What a child printed before it ended: the line about the cause is kept, however much followed it."""

from __future__ import annotations

import pytest

from nodevet.checks.ipc.last_words import NOT_INSTALLED, LastWords, wants


@pytest.mark.parametrize("line", ["Fatal Python error: deallocating None", "std::bad_alloc", "ImportError: no"])
def test_words_of_a_cause_are_kept_whatever_followed(line: str) -> None:
    """The interpreter prints all that it was in behind its one line, and a library may print as much."""
    words = LastWords()
    assert (words.last, words.text) == ("", "")
    for text in (line, *(f"frame {number}" for number in range(100))):
        words.append(text)
    assert words.text.splitlines()[0] == line
    assert len(words.text.splitlines()) == 21
    assert words.last == (line if "Fatal" in line else "frame 99")
    words.clear()
    assert (words.last, words.text) == ("", "")


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", ["memory"]),
        ("mmap: Cannot allocate memory", ["memory"]),
        ("could not allocate 4096 bytes", ["memory"]),
        ("virtual memory exhausted", ["memory"]),
        ("what():  write: No space left on device", ["space on a disk"]),
        ("shm_open: No space left on device [system:28]", ["space on a disk"]),
        ("cannot write the log: disk full", ["space on a disk"]),
        ("the file system is full", ["space on a disk"]),
        ("ftruncate: Disk quota exceeded", ["permission to write to a disk"]),
        ("open: Read-only file system", ["permission to write to a disk"]),
        ("write: File too large", ["permission to write to a disk"]),
        ("pthread_create failed", ["threads"]),
        ("thread constructor failed: Resource temporarily unavailable", ["threads"]),
        ("unable to create new thread", ["threads"]),
        ("failed to fork: busy", []),
        ("failed to fork process", ["threads"]),
        ("open: Too many open files", ["descriptors"]),
        ("pthread_create: Cannot allocate memory", ["memory", "threads"]),
        ("driver: assertion failed in fake_call", []),
        ("double free or corruption (out)", []),
        ("failed to mmap BAR0", []),
        ("failed to create context", []),
    ],
)
def test_words_tell_what_was_refused(words: str, lacking: list[str]) -> None:
    """The words of strerror(3), of C++ and of libraries; what a broken board makes one say is none of them."""
    assert [want.name for want in wants() if want.words.search(words)] == lacking


@pytest.mark.parametrize(
    ("words", "is_missing"),
    [
        ("Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding", True),
        ("No module named 'encodings'", True),
        ("Fatal Python error: deallocating None", False),
    ],
)
def test_an_interpreter_without_its_library_is_a_broken_installation(words: str, is_missing: bool) -> None:
    """An upgrade of the distribution takes it away for a moment; that was told as a bug to report."""
    assert bool(NOT_INSTALLED.search(words)) is is_missing
