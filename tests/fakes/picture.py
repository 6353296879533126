"""Pictures that a browser took: their size, and how to make them small enough to be kept beside the source."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["picture_size", "shrink"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256
FREQUENT = 200
TOO_FAR = 45
RGB = 3

Colour = tuple[int, int, int]


def picture_size(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    width, height = struct.unpack(">II", _chunks(picture)[b"IHDR"][:8])
    return width, height


def shrink(picture: Path) -> None:
    """Write *picture* (8 bits of red, green, blue) anew with a palette of its most frequent colours.

    A page is drawn in few colours; what else there is smooths the edges of letters, where the nearest will do.
    """
    chunks = _chunks(picture)
    width, height = picture_size(picture)
    assert chunks[b"IHDR"][8:] == bytes([8, 2, 0, 0, 0]), "not 8 bits of red, green and blue without interlace"
    rows = [list(zip(*[iter(row)] * RGB, strict=True)) for row in _rows(zlib.decompress(chunks[b"IDAT"]), width)]
    counted = Counter(colour for row in rows for colour in row)
    palette = _palette(counted)
    nearest = {colour: _nearest(colour, palette) for colour in counted}
    pixels = b"".join(b"\0" + bytes(nearest[colour] for colour in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    table = bytes(channel for colour in palette for channel in colour)
    parts = ((b"IHDR", header), (b"PLTE", table), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    picture.write_bytes(SIGNATURE + b"".join(_chunk(kind, body) for kind, body in parts))


def _palette(counted: Counter[Colour]) -> list[Colour]:
    """Return the most frequent colours, and of the others those that no frequent one comes near."""
    frequent = [colour for colour, _ in counted.most_common()]
    palette = frequent[:FREQUENT]
    for colour in frequent[FREQUENT:]:
        near = palette[_nearest(colour, palette)]
        if len(palette) < COLOURS and sum(abs(a - b) for a, b in zip(colour, near, strict=True)) > TOO_FAR:
            palette.append(colour)
    return palette


def _chunks(picture: Path) -> dict[bytes, bytes]:
    """Return what a PNG holds by kind, pieces of one kind put together."""
    content = picture.read_bytes()
    assert content.startswith(SIGNATURE), f"{picture} is no PNG"
    found: dict[bytes, bytes] = {}
    place = len(SIGNATURE)
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind = content[place + 4 : place + 8]
        found[kind] = found.get(kind, b"") + content[place + 8 : place + 8 + length]
        place += 12 + length
    return found


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _rows(raw: bytes, width: int) -> Iterator[bytearray]:
    """Yield the rows of pixels, each freed of the filter that its first byte names (PNG specification, 9.2)."""
    stride = width * RGB
    above = bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for at in range(stride) if kind else ():
            left = row[at - RGB] if at >= RGB else 0
            corner = above[at - RGB] if at >= RGB else 0
            row[at] = (row[at] + _predicted(kind, left, above[at], corner)) & 0xFF
        yield row
        above = row


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))


def _nearest(colour: Colour, palette: list[Colour]) -> int:
    return min(
        range(len(palette)),
        key=lambda place: sum((a - b) ** 2 for a, b in zip(colour, palette[place], strict=True)),
    )
