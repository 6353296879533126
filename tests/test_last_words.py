"""What a child printed before it ended: the line about the cause is kept, however much followed it."""

from __future__ import annotations

import pytest

from nodevet.agent.last_words import LastWords


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
