"""A terminal in memory: what stands on its screen after the bytes of a program, as far as the live table needs it."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])")


class Screen:
    """A screen of *columns* by *rows* that wraps and scrolls as a terminal does; unknown sequences are an error."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        """Begin with an empty screen, and the cursor in its first cell."""
        self._columns = columns
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self.widest = 0
        """The most cells that any line used so far."""
        self.scrolled = 0

    def feed(self, text: str) -> None:
        """Show *text*."""
        at = 0
        while at < len(text):
            found = _SEQUENCE.match(text, at)
            if found is not None:
                self._obey(int(found[1] or 1), found[2])
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    @property
    def lines(self) -> list[str]:
        """The lines of the screen without trailing blanks, up to the last that has any."""
        lines = ["".join(row).rstrip() for row in self._cells]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _obey(self, number: int, letter: str) -> None:
        match letter:
            case "A":
                self._row = max(0, self._row - number)
            case "K":
                self._cells[self._row][self._column :] = [" "] * (self._columns - self._column)
            case "J":
                self._obey(1, "K")
                for row in self._cells[self._row + 1 :]:
                    row[:] = [" "] * self._columns
            case "m":
                pass
            case _:
                raise AssertionError(f"a sequence of the letter {letter!r} is not known")

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._column = 0  # as the line discipline of a terminal does
            self._down()
        else:
            assert letter.isprintable(), f"{letter!r} is no text"
            if self._column == self._columns:
                self._column = 0
                self._down()
            self._cells[self._row][self._column] = letter
            self._column += 1
            self.widest = max(self.widest, self._column)

    def _down(self) -> None:
        if self._row + 1 < len(self._cells):
            self._row += 1
        else:
            self._cells = [*self._cells[1:], [" "] * self._columns]
            self.scrolled += 1
