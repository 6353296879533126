"""The matrix of nvidia-smi topo -m: every shape it is printed, saved or pasted in, and what differs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.core.errors import NodevetError, UsageError
from nodevet.checks.topology.comparison import Difference, asymmetries, compare
from nodevet.checks.topology.matrix import Topology, render_table, to_json
from nodevet.checks.topology.saved import parse_topology

FIXTURES = Path(__file__).parent / "fixtures" / "topology"


def read(name: str) -> Topology:
    """Return the topology of a fixture."""
    return parse_topology((FIXTURES / f"{name}.txt").read_bytes().decode())


def test_tabbed_matrix_is_read_with_adapters_legend_and_affinity() -> None:
    """The ordinary output gives names, matrix, adapters by GPU, their names and both affinities."""
    document = to_json(read("switch_4"))
    assert document["schema"] == "nodevet.topo/1"
    assert document["gpus"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert document["matrix"][1] == ["NV18", "X", "NV18", "NV18"]
    assert document["nics"] == ["NIC0", "NIC1"]
    assert document["nic_to_gpu"] == [["PIX", "PIX", "SYS", "SYS"], ["SYS", "SYS", "PIX", "PIX"]]
    assert document["nic_legend"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_bond_0"}
    assert document["cpu_affinity"] == ["0-7", "0-7", "8-15", "8-15"]
    assert document["numa_affinity"] == ["0", "0", "1", "1"]
    assert document["gpu_numa_id"] == ["N/A"] * 4
    assert document["problems"] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "coloured",
            {"matrix": [["X"]], "cpu_affinity": [""], "numa_affinity": [""], "gpu_numa_id": ["N/A"], "nic_to_gpu": []},
            id="terminal colours, carriage returns, empty affinity",
        ),
        pytest.param(
            "blanks",
            {"nics": ["ib0"], "nic_to_gpu": [["PHB", "SYS"]], "cpu_affinity": ["0-15", "16-31"], "gpu_numa_id": None},
            id="aligned with blanks, adapter by name",
        ),
        pytest.param(
            "expanded_tabs",
            {"cpu_affinity": ["", "0-5"], "numa_affinity": ["1", "1"], "gpu_numa_id": ["N/A", "N/A"]},
            id="tabs turned to blanks keep an empty cell in its column",
        ),
        pytest.param(
            "wrapped_header",
            {"gpus": ["GPU0", "GPU1"], "nics": ["NIC0"], "nic_to_gpu": [["PHB", "PHB"]], "numa_affinity": ["0", "0"]},
            id="header wrapped by the terminal, a line naming a GPU before it",
        ),
        pytest.param(
            "fused",
            {"matrix": [["X", "NV6"], ["NV6", "X"]], "nic_to_gpu": None, "cpu_affinity": [None, "8-15"]},
            id="two cells run together: what lies behind is unknown, not shifted",
        ),
        pytest.param(
            "truncated",
            {"matrix": [["X", "NV6", "NV6"], ["NV6", "X", "NV6"], [None, None, None]], "cpu_affinity": None},
            id="a missing row is unknown",
        ),
    ],
)
def test_unusual_shapes_are_read_or_unknown(name: str, expected: dict[str, Any]) -> None:
    """Every shape gives what it does say, and None where a cell is not in its column for sure."""
    document = to_json(read(name))
    assert {key: document[key] for key in expected} == expected


@pytest.mark.parametrize(("name", "gpu"), [("fused", "GPU0"), ("truncated", "GPU2")])
def test_what_could_not_be_read_is_told(name: str, gpu: str) -> None:
    """A row that is missing or only half readable is named in words."""
    assert any(problem.startswith(gpu) for problem in read(name).problems)


@pytest.mark.parametrize(("name", "words"), [("peer_to_peer", "topo -p2p"), ("no_driver", "nvidia-smi topo -m")])
def test_text_that_is_no_matrix_is_refused(name: str, words: str) -> None:
    """Another table or an error message is refused with what was expected."""
    with pytest.raises(UsageError, match=words):
        read(name)


def test_same_topology_has_no_difference() -> None:
    """A node compared with itself is as expected."""
    assert compare(read("switch_4"), read("switch_4")) == ()


def test_lost_link_is_one_difference_and_worse() -> None:
    """A pair that lost its NVLinks in both directions is told once, as a farther connection."""
    differences = compare(read("switch_4_lost_pair"), read("switch_4"))
    assert differences == (Difference("link", "GPU1", "GPU2", "NODE", "NV18", True),)
    assert differences[0].message == "GPU1 to GPU2: link is NODE, expected NV18"


def test_one_way_difference_is_told_and_is_no_symmetry() -> None:
    """A link that says less in one direction is a difference of that direction, and the matrix is not symmetric."""
    actual = read("switch_4_one_way")
    assert compare(actual, read("switch_4")) == (Difference("link", "GPU2", "GPU1", "NV16", "NV18", True),)
    assert asymmetries(actual) == (Difference("link", "GPU2", "GPU1", "NV16", "NV18", True),)


def test_unreadable_cell_is_a_difference() -> None:
    """What could not be read is never as expected; what the expectation does not know is not compared."""
    whole = Topology(
        gpus=("GPU0", "GPU1", "GPU2"), matrix=(("X", "NV6", "NV6"), ("NV6", "X", "NV6"), ("NV6", "NV6", "X"))
    )
    found = compare(read("truncated"), whole)
    assert {(d.first, d.second, d.actual, d.worse) for d in found} == {
        ("GPU2", "GPU0", None, True),
        ("GPU2", "GPU1", None, True),
    }
    assert compare(whole, read("truncated")) == ()


@pytest.mark.parametrize(
    ("actual", "expected", "worse"),
    [
        ("XGMI2", "XGMI", True),
        ("XGMI", "XGMI2", False),
        ("SYS", "XGMI2", True),
        ("XGMI", "PIX", False),
        ("PCIE", "XGMI", None),
    ],
)
def test_more_hops_over_xgmi_are_farther_and_pcie_is_farthest(actual: str, expected: str, worse: bool | None) -> None:
    """A direct link is the closest; where sysfs does not tell what kind of PCIe it is there is no order."""
    pair = [Topology(gpus=("GPU0", "GPU1"), matrix=(("X", cell), (cell, "X"))) for cell in (actual, expected)]
    assert [difference.worse for difference in compare(*pair)] == [worse]


def test_missing_and_additional_devices_are_told() -> None:
    """A GPU or adapter that is expected and absent is worse; an additional GPU has no order."""
    small, large = read("blanks"), read("switch_4")
    missing = compare(small, large)
    assert [d.first for d in missing if d.kind == "gpu" and d.worse] == ["GPU2", "GPU3"]
    assert [d.first for d in missing if d.kind == "nic"] == ["mlx5_0", "mlx5_bond_0"]
    assert [d.worse for d in compare(large, small) if d.kind == "gpu"] == [None, None]


def test_adapters_are_matched_by_name_not_by_number() -> None:
    """A driver that numbers the adapters otherwise changes nothing; a farther adapter is told."""
    text = (FIXTURES / "switch_4.txt").read_text()
    swapped = text.replace("NIC0: mlx5_0", "NIC0: mlx5_bond_0").replace("NIC1: mlx5_bond_0", "NIC1: mlx5_0")
    found = compare(parse_topology(swapped), read("switch_4"))
    assert {(d.kind, d.first, d.second, d.worse) for d in found if d.expected == "PIX"} == {
        ("nic_link", "mlx5_0", "GPU0", True),
        ("nic_link", "mlx5_0", "GPU1", True),
        ("nic_link", "mlx5_bond_0", "GPU2", True),
        ("nic_link", "mlx5_bond_0", "GPU3", True),
    }


def test_changed_affinity_is_told() -> None:
    """A GPU that moved to other processors is a difference without order."""
    moved = parse_topology((FIXTURES / "switch_4.txt").read_text().replace("0-7\t0", "8-15\t1"))
    kinds = {(d.kind, d.first, d.actual, d.expected, d.worse) for d in compare(moved, read("switch_4"))}
    assert ("cpu_affinity", "GPU0", "8-15", "0-7", None) in kinds
    assert ("numa_affinity", "GPU1", "1", "0", None) in kinds


def test_table_for_people_can_be_read_again() -> None:
    """The plain text shows adapters by name, and says the same as the original."""
    topology = read("switch_4")
    table = render_table(topology)
    assert "mlx5_bond_0" in table and "\t" not in table and "\x1b" not in table
    again = parse_topology(table)
    assert (again.matrix, again.nic_to_gpu, again.cpu_affinity) == (
        topology.matrix,
        topology.nic_to_gpu,
        topology.cpu_affinity,
    )


def test_table_for_people_marks_what_is_unknown() -> None:
    """Unknown cells are question marks, and the reason stands below."""
    table = render_table(read("fused"))
    assert "?" in table
    assert "GPU0: only 2 of 4 connections can be read" in table


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("GPUNICX0123 \t\nVSYPH:AfinityM-,\x1b[m"), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text, however broken, does anything but parse or raise our own error."""
    try:
        topology = parse_topology(text)
    except NodevetError:
        return
    assert len(topology.matrix) == len(topology.gpus)
    render_table(topology)
    assert compare(topology, topology) is not None


def quoted(text: str, mark: str) -> str:
    """Return *text* with *mark* before each line."""
    return "\n".join(mark + line for line in text.split("\n"))


def cut_at(text: str, width: int) -> str:
    """Return *text* as a terminal of *width* columns shows it: through words, if need be."""
    shown = (line.expandtabs(8) for line in text.split("\n"))
    return "\n".join(line[start : start + width] for line in shown for start in range(0, max(len(line), 1), width))


def timed(text: str) -> str:
    """Return *text* with a time before each line."""
    return "\n".join(f"2025-01-0{n % 9 + 1}T00:00:{n:02} {line}" for n, line in enumerate(text.split("\n")))


def as_markdown(text: str) -> str:
    """Return *text* with its tabbed lines as rows of a Markdown table."""
    return "\n".join(f"| {line.replace(chr(9), ' | ')} |" if "\t" in line else line for line in text.split("\n"))


@pytest.mark.parametrize("name", ["switch_4", "switch_4_lost_pair"])
@pytest.mark.parametrize(
    "pasted",
    [
        pytest.param(lambda text: quoted(text, "> "), id="mail quote"),
        pytest.param(lambda text: quoted(text, ">"), id="mail quote without a blank"),
        pytest.param(lambda text: quoted(text, "| "), id="bar"),
        pytest.param(lambda text: quoted(text, "node-7: "), id="node before each line"),
        pytest.param(timed, id="time before each line"),
        pytest.param(as_markdown, id="Markdown table"),
        *(
            pytest.param(lambda text, on=on, off=off: on + text.replace("\n", off + "\n", 1), id=f"underlined {on!r}")
            for on, off in (("\x1b[4m", "\x1b[0m"), ("[4m", "[0m"), ("^[[4m", "^[[0m"), ("\x1b[4m", "\x1b(B\x1b[m"))
        ),
        pytest.param(lambda text: f"```\n{text}\n```\nand GPU0 is fine", id="Markdown fence"),
        pytest.param(lambda text: f"$ nvidia-smi topo -m{text}\n$", id="prompt on the header"),
        pytest.param(lambda text: "\ufeff" + text, id="byte order mark"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="carriage returns"),
        pytest.param(lambda text: text.replace("\t", "\\t").replace("\n", "\\n"), id="escaped"),
        pytest.param(lambda text: "\n".join(line.strip() for line in text.split("\n")), id="stripped lines"),
        pytest.param(lambda text: text.replace("\n", "\n\n"), id="blank lines between"),
        *(pytest.param(lambda text, w=width: cut_at(text, w), id=f"cut at {width}") for width in (47, 60, 72, 77, 80)),
    ],
)  # fmt: skip
def test_matrix_is_the_same_however_it_was_pasted(name: str, pasted: Callable[[str], str]) -> None:
    """Marks before the lines, tables, escapes and a terminal's edge change nothing in what is read."""
    text = (FIXTURES / f"{name}.txt").read_text()
    assert parse_topology(pasted(text)) == parse_topology(text)


def test_second_table_changes_nothing_in_the_first() -> None:
    """The peer-to-peer table behind the matrix, as reports print both, is neither mixed in nor refused."""
    text = (FIXTURES / "switch_4.txt").read_text()
    assert parse_topology(f"{text}\n{(FIXTURES / 'peer_to_peer.txt').read_text()}") == parse_topology(text)


@pytest.mark.parametrize(
    ("header", "cells", "expected"),
    [
        ("CPU Affinity\tNUMA Affinity", "0-7\t0", ("0-7", "0", None)),
        ("CPU Affinity\tNUMA Affinity", "0-7\t\tN/A", ("0-7", "N/A", None)),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-7\t0\t\tN/A", ("0-7", "0", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-7\t\tN/A\t\tN/A", ("0-7", "N/A", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t\tN/A", ("", "", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-71\t0,2-9\t\t1", ("0-71", "0,2-9", "1")),
    ],
)
def test_empty_cells_between_the_affinities_shift_nothing(
    header: str, cells: str, expected: tuple[str | None, ...]
) -> None:
    """Each generation of drivers puts its empty cells elsewhere; the values stand in their columns all the same."""
    topology = parse_topology(f"\tGPU0\t{header}\nGPU0\t X \t{cells}\n")
    found = (topology.cpu_affinity, topology.numa_affinity, topology.gpu_numa_id)
    assert tuple(column and column[0] for column in found) == expected


def test_lists_of_cores_and_memory_nodes_are_kept_as_printed() -> None:
    """Coherent boards list memory nodes with commas and name the GPU's own; single cores are listed as well."""
    topology = parse_topology(
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    SYS     0-71    0,3-9,11-17             2\n"
        "GPU1    NV18     X      SYS     4,6,8,10,12      1               N/A\n"
        "NIC0    SYS     SYS      X\n"
    )
    assert topology.cpu_affinity == ("0-71", "4,6,8,10,12")
    assert topology.numa_affinity == ("0,3-9,11-17", "1")
    assert topology.gpu_numa_id == ("2", "N/A")


@pytest.mark.parametrize(
    "filler", ["GPU0 " * 60_000, "\0" * 300_000, "GPU0 X " * 40_000, "|" * 300_000, "\\nGPU0" * 40_000]
)
def test_endless_line_is_refused_in_no_time(filler: str) -> None:
    """A line of any length is no matrix, and is told so at once."""
    begins = time.perf_counter()
    with pytest.raises(UsageError, match="no topology matrix"):
        parse_topology(filler)
    assert time.perf_counter() - begins < 5.0
