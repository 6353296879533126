"""The text of ``nvidia-smi topo -m`` as printed, saved or pasted.

Cells are separated by tabs or aligned with blanks, a terminal may have wrapped or coloured the header, and adapters are
named in the header or in a legend below. An ambiguous cell is None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from nodevet.checks.core.errors import UsageError

from .matrix import Cells, Topology

_LINK = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|C2C")
_PEER_TO_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "CNSX"})
"""Cells of ``nvidia-smi topo -p2p``, which has the same layout but shows capabilities, not connections."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\([AB0]|\^\[\[[0-9;]*[A-Za-z]|\^\[\([AB0]|\[\d{0,2}(?:;\d{1,3})*m")
"""Colours and underlines, also as text and with the escape character lost, as on web pages and issue trackers."""
_COLUMN = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|\S+", re.IGNORECASE)
_GPU = re.compile(r"GPU\d+")
_LEGEND_ENTRY = re.compile(r"\s*(?P<nic>NIC\d+)\s*:\s*(?P<name>\S+)\s*")
_AFFINITIES = frozenset({"cpu affinity", "numa affinity", "gpu numa id"})
_AFFINITY_CELL = re.compile(r"[\d,-]+|N/A")
_FULL_NAME = re.compile(r"(?:GPU|NIC)\d+|mlx\w+\d|CPU|GPU|NUMA|Affinity|ID", re.IGNORECASE)
_FIRST_ROW = re.compile(r"^(?P<prefix>[^\n]*?)GPU0[ \t\xa0|]+X(?=[\s|]|$)", re.MULTILINE)
_COMMAND = re.compile(r"^.*?\bnvidia-smi\s+topo\s+-mp?(?=\s+GPU0)")
_ESCAPED = (("\\r", ""), ("\\n", "\n"), ("\\t", "\t"), ("\\x1b", "\x1b"), ("\\u001b", "\x1b"), ("\\033", "\x1b"))

_TAB = 8
_MAXIMUM_HEADER_LINES = 6


class _Row(msgspec.Struct):
    """A parsed row: its link cells, and its affinities where they could be separated."""

    links: list[str | None]
    affinities: list[str] | None


def parse_topology(text: str) -> Topology:
    """Return the topology in *text*, the output of ``nvidia-smi topo -m``. Raises UsageError without a matrix."""
    lines = _plain_lines(text)
    start, columns, width = _find_header(lines)
    links = [name for name in columns if name not in _AFFINITIES]
    affinities = list(dict.fromkeys(name for name in columns if name in _AFFINITIES))
    rows = _read_rows(lines[start:], links, affinities, width)
    gpus = tuple(name for name in links if _GPU.fullmatch(name))
    _refuse_other_tables(rows, gpus)
    nics = tuple(name for name in links if name not in gpus)
    problems = tuple(_problems(rows, gpus, bool(affinities)))
    return Topology(
        gpus=gpus,
        matrix=tuple(tuple(_cell(rows, gpu, links.index(other)) for other in gpus) for gpu in gpus),
        nics=nics,
        nic_to_gpu=_nic_cells(rows, gpus, nics, links),
        nic_legend=_legend(lines[start:]),
        cpu_affinity=_affinity(rows, gpus, affinities, "cpu affinity"),
        numa_affinity=_affinity(rows, gpus, affinities, "numa affinity"),
        gpu_numa_id=_affinity(rows, gpus, affinities, "gpu numa id"),
        problems=problems,
    )


def _plain_lines(text: str) -> list[str]:
    """Return the lines without colours and without the prefixes and separators of a mail, a table or a tool."""
    if "\\nGPU0" in text:
        for escape, character in _ESCAPED:
            text = text.replace(escape, character)
    text = _ESCAPE.sub("", text.lstrip("\ufeff"))
    first = _FIRST_ROW.search(text)
    prefix = first["prefix"] if first else ""
    if prefix.strip() and prefix.strip() != "|":
        # Times and line numbers vary between lines.
        varying = re.sub(r"\d+", lambda _: r"\d+", re.escape(prefix.rstrip()))
        text = re.sub(rf"^{varying} ?", "", text, flags=re.MULTILINE)
    return [_plain_line(line.rstrip("\r")) for line in text.split("\n")]


def _plain_line(line: str) -> str:
    bare = line.strip()
    if bare.startswith("|"):
        cells = bare.removeprefix("|").removesuffix("|").split("|")
        return cells[0] if len(cells) == 1 else "\t".join(cell.strip() for cell in cells)
    return _COMMAND.sub("", line)


def _find_header(lines: Sequence[str]) -> tuple[int, list[str], int]:
    """Return the index of the first line after the header, the columns, and the width of wrapping, 0 without it."""
    for index, line in enumerate(lines):
        if not _starts_header(line):
            continue
        header = line
        for offset, following in enumerate(lines[index : index + _MAXIMUM_HEADER_LINES]):
            if _is_row(following):
                return index + offset, _column_names(header), len(line.expandtabs(_TAB)) if offset > 1 else 0
            if offset:
                header += _seam(header, following) + following
    raise UsageError(
        "no topology matrix: expected the output of nvidia-smi topo -m, a header GPU0 ... and a row for each GPU"
    )


def _starts_header(line: str) -> bool:
    words = line.split()
    return bool(words) and _GPU.fullmatch(words[0]) is not None and not _is_row(line)


def _seam(line: str, following: str) -> str:
    """Return the text between two lines of a wrapped header: none where a name was cut in two, else a blank."""
    if line[-1:].isspace() or following[:1].isspace() or not line or not following:
        return " "
    whole = (_FULL_NAME.fullmatch(line.split()[-1]), _FULL_NAME.fullmatch(following.split()[0]))
    return " " if all(whole) else ""


def _is_row(line: str) -> bool:
    """Return whether *line* is a label followed by a cell: only a header continues with another name."""
    words = line.split()
    return len(words) > 1 and (_LINK.fullmatch(words[1]) is not None or words[1] in _PEER_TO_PEER)


def _column_names(line: str) -> list[str]:
    names = (" ".join(match.group().split()) for match in _COLUMN.finditer(line))
    return [name.lower() if name.lower() in _AFFINITIES else name for name in names]


def _read_rows(lines: Sequence[str], links: list[str], affinities: list[str], width: int) -> dict[str, _Row]:
    """Return the rows by label, up to the first line that is neither a row nor the rest of a wrapped one.

    *width* is the terminal width at which lines were cut, possibly within a cell; 0 where unknown.
    """
    rows: dict[str, _Row] = {}
    pending = last = ""
    for line in lines:
        words = line.split()
        if words and words[0] in links and _is_row(line):
            pending = line
        elif pending and _continues(pending, words, len(links), len(affinities)):
            cut = width and len(last.expandtabs(_TAB)) == width and not last[-1].isspace() and not line[0].isspace()
            pending += line if cut else "\t" + line.strip()
        else:
            pending = ""
            continue
        last = line
        label = pending.split()[0]
        row = _read_row(pending, len(links), affinities)
        if label not in rows or _better(row, rows[label]):
            rows[label] = row
    return rows


def _continues(pending: str, words: list[str], links: int, affinities: int) -> bool:
    """Return whether *words* are the rest of the row *pending*: cells that it lacks, and nothing else."""
    have = len(pending.split()) - 1
    if not words or have >= links + affinities:
        return False
    if have >= links:
        return all(_AFFINITY_CELL.fullmatch(word) for word in words)
    return not words[-1].endswith(":")


def _better(row: _Row, other: _Row) -> bool:
    return _known(row) > _known(other)


def _known(row: _Row) -> tuple[int, int]:
    """Return the numbers of known links and affinities of *row*."""
    return sum(cell is not None for cell in row.links), sum(bool(cell) for cell in row.affinities or [])


def _read_row(line: str, links: int, affinities: list[str]) -> _Row:
    if "\t" in line.strip():
        row = _read_tabbed(line, links, len(affinities))
        if None not in row.links:
            return row
        tabbed = row
    else:
        tabbed = None
    row = _read_spaced(line, links, len(affinities))
    return tabbed if tabbed is not None and not _better(row, tabbed) else row


def _read_tabbed(line: str, links: int, affinities: int) -> _Row:
    cells = [cell.strip() for cell in line.strip("\n").split("\t")]
    if cells and not cells[0]:
        cells = cells[1:]
    found = _leading_links(cells[1 : links + 1], links)
    if None in found:
        return _Row(found, None)
    filled = [cell for cell in cells[links + 1 :] if cell]
    if len(filled) == affinities:
        # Drivers put an empty cell before one column or another; nothing is missing here.
        return _Row(found, filled)
    rest = cells[links + 1 :] + [""] * affinities
    if affinities < 3:
        return _Row(found, rest[:affinities])
    return _Row(found, [rest[0], rest[1], next((cell for cell in rest[2:] if cell), "")])


def _read_spaced(line: str, links: int, affinities: int) -> _Row:
    expanded = line.expandtabs(_TAB)
    words = list(re.finditer(r"\S+", expanded))
    found = _leading_links([word.group() for word in words[1 : links + 1]], links)
    if None in found:
        return _Row(found, None)
    rest = words[links + 1 :]
    if len(rest) == affinities:
        return _Row(found, [word.group() for word in rest])
    if not rest or affinities == 0:
        return _Row(found, [""] * affinities)
    last = words[links].end()
    return _Row(found, _by_tab_stops(expanded, last, affinities))


def _by_tab_stops(expanded: str, last: int, affinities: int) -> list[str] | None:
    """Return the cells of text whose tabs were expanded to blanks: each cell begins at a multiple of eight."""
    position = (last // _TAB + 1) * _TAB
    cells: list[str] = []
    while position < len(expanded):
        word = re.match(r"\S*", expanded[position:])
        text = word.group() if word else ""
        cells.append(text)
        position = ((position + len(text)) // _TAB + 1) * _TAB
    filled = [cell for cell in cells if cell]
    if filled != expanded[last:].split():
        return None
    cells += [""] * affinities
    if affinities < 3:
        return cells[:affinities] if len(filled) <= affinities else None
    return [cells[0], cells[1], next((cell for cell in cells[2:] if cell), "")]


def _leading_links(cells: Sequence[str], links: int) -> list[str | None]:
    """Return the link cells up to the first invalid one: after it the column of a cell is uncertain."""
    found: list[str | None] = []
    for cell in cells:
        if not _LINK.fullmatch(cell) and cell not in _PEER_TO_PEER:
            break
        found.append(cell)
    return found + [None] * (links - len(found))


def _refuse_other_tables(rows: dict[str, _Row], gpus: tuple[str, ...]) -> None:
    cells = {cell for row in rows.values() for cell in row.links if cell is not None}
    if cells & _PEER_TO_PEER:
        raise UsageError(
            "this is the table of nvidia-smi topo -p2p, which tells capabilities, not connections; use topo -m"
        )
    if not gpus or not any(gpu in rows for gpu in gpus):
        raise UsageError("no topology matrix: a header but no row for a GPU; use the output of nvidia-smi topo -m")


def _cell(rows: dict[str, _Row], label: str, column: int) -> str | None:
    return rows[label].links[column] if label in rows else None


def _nic_cells(
    rows: dict[str, _Row], gpus: tuple[str, ...], nics: tuple[str, ...], links: list[str]
) -> tuple[Cells, ...] | None:
    cells = tuple(tuple(_cell(rows, gpu, links.index(nic)) for gpu in gpus) for nic in nics)
    return None if any(cell is None for row in cells for cell in row) else cells


def _affinity(rows: dict[str, _Row], gpus: tuple[str, ...], affinities: list[str], name: str) -> Cells | None:
    if name not in affinities:
        return None
    index = affinities.index(name)
    cells = tuple(
        row.affinities[index] if (row := rows.get(gpu)) is not None and row.affinities is not None else None
        for gpu in gpus
    )
    return None if all(cell is None for cell in cells) else cells


def _legend(lines: Sequence[str]) -> dict[str, str]:
    entries = (_LEGEND_ENTRY.fullmatch(line) for line in lines)
    return {entry["nic"]: entry["name"] for entry in entries if entry}


def _problems(rows: dict[str, _Row], gpus: tuple[str, ...], has_affinities: bool) -> Iterator[str]:
    for gpu in gpus:
        row = rows.get(gpu)
        if row is None:
            yield f"{gpu}: the row is missing"
        elif None in row.links:
            yield f"{gpu}: only {row.links.index(None)} of {len(row.links)} connections can be read"
        elif has_affinities and row.affinities is None:
            yield f"{gpu}: the affinities cannot be told apart"
