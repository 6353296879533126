"""What a board owes and how many links it has do not hang on the one name of its model that a table has."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.host_tree import PCI
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.rig import Rig
from fakes.views import bad as refused
from fakes.views import gpu, healthy, judge, link, of, sample
from test_split_boards import Driver, backend_of

from nodevet.checks.backends.amd.amdsmi import Library, Target
from nodevet.checks.backends.amd.identity import identify
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import WHOLE, Reading, ReadingStatus, Snapshot, State
from nodevet.checks.engine.baseline import UNNAMED as NO_MODEL
from nodevet.checks.engine.baseline import owed, requirements
from nodevet.checks.reference.expected_links import ExpectedLinks, Which, expected_links
from nodevet.checks.reference.tables import load_table

BASE = {"temperature_celsius", "clock_hertz"}
MEMORY = {"power_watts", "ecc_uncorrected_errors"}
ROWS = {"row_remap_failed"}
LINKS = {"link_active"}

UNNAMED = "AMD Radeon Graphics"
"""What libdrm calls a board that its list of names lacks."""


def unsupported(port: int) -> Reading:
    """Return what a port says that is not in use."""
    return refused("link_active", link(port), ReadingStatus.UNSUPPORTED)


def codes(snapshot: Snapshot) -> set[str]:
    """Return what is open."""
    return {episode.key.code for episode in snapshot.episodes}


@pytest.mark.parametrize(
    ("vendor", "model", "architecture", "owed"),
    [
        ("nvidia", "NVIDIA H100", None, BASE | MEMORY | ROWS | LINKS),
        ("nvidia", "NVIDIA H20Z", None, BASE | LINKS),
        ("nvidia", "NVIDIA H20Z", "hopper", BASE | MEMORY | ROWS | LINKS),
        ("nvidia", "NVIDIA H20 NVL16", "hopper", BASE | MEMORY | ROWS),
        ("nvidia", "NVIDIA R200", "rubin", BASE | MEMORY | ROWS | LINKS),
        ("nvidia", "NVIDIA RTX A1000", "ampere", BASE),
        ("nvidia", "NVIDIA A100X", "ampere", BASE | MEMORY | ROWS),
        ("nvidia", "GRID A100-40C", "ampere", BASE | MEMORY | ROWS),
        ("nvidia", "NVIDIA A100-PG509-200", "ampere", BASE | MEMORY | ROWS | LINKS),
        ("nvidia", "NVIDIA PG509-210", "ampere", BASE | MEMORY | ROWS | LINKS),
        ("nvidia", "NVIDIA PG506-232", "ampere", BASE | MEMORY | ROWS | LINKS),
        ("amd", "AMD Instinct MI300X HF", None, BASE | MEMORY | LINKS),
        ("amd", "AMD Instinct MI308X HF", "gfx942", BASE | MEMORY | LINKS),
        ("amd", "AMD Instinct MI300X OAM", None, BASE | MEMORY | LINKS),
        ("amd", "MI300X-O", None, BASE | MEMORY | LINKS),
        ("amd", "AMD Instinct MI300A", "gfx942", BASE | MEMORY),
        ("amd", "AMD Instinct MI350P", "gfx950", BASE | MEMORY),
        ("amd", "AMD Instinct MI100", "gfx908", BASE | MEMORY),
        ("amd", "AMD Instinct MI210", None, BASE | MEMORY),
        ("amd", "AMD Instinct MI250X", None, BASE | {"ecc_uncorrected_errors"}),
        ("amd", "AMD Instinct MI250X / MI250", None, BASE | {"ecc_uncorrected_errors"}),
        ("amd", UNNAMED, "gfx942", BASE | MEMORY),
        ("amd", UNNAMED, "gfx950", BASE | MEMORY),
        ("amd", UNNAMED, "gfx908", {"ecc_uncorrected_errors"}),
        ("amd", UNNAMED, "gfx90a", {"ecc_uncorrected_errors"}),
        ("amd", UNNAMED, "gfx1100", set()),
    ],
)
def test_a_board_owes_what_boards_of_its_make_tell_by_whichever_name(
    vendor: str, model: str, architecture: str | None, owed: set[str]
) -> None:
    """Variants of a name, and boards known by their chip alone; what only looks like a name owes nothing more."""
    assert requirements(gpu(vendor=vendor, backend=vendor, model=model, architecture=architecture)) == owed


@pytest.mark.parametrize(
    ("vendor", "model", "architecture"),
    [("amd", "AMD Instinct MI300X VF", "gfx942"), ("nvidia", "NVIDIA HX-40C", "hopper")],
)
def test_a_share_of_a_board_owes_nothing_for_its_chip(vendor: str, model: str, architecture: str) -> None:
    """Its host tells the rest."""
    share = gpu(vendor=vendor, backend=vendor, model=model, architecture=architecture, virtual=True)
    assert requirements(share) == BASE


def test_every_board_with_links_tells_them_unless_its_row_says_otherwise() -> None:
    """One table says who has links and who tells them: two of them had gone apart."""
    rows = load_table("expected_links.csv", ExpectedLinks)
    silent = {row.model for row in rows if row.links and not row.told and row.which is not Which.BRIDGED}
    gaudi = {"*HL-20[5-9]*", "*HL-2[0-9][0-9]*", "*HL-3[0-9][0-9]*"}
    assert silent == {"*MI250*", "*MI300A*", "*MI[2-9][0-9][0-9]X*", "*"} | gaudi
    for row in rows:
        model = row.model.replace("[18]", "1").replace("[0-9]", "2").replace("[123]", "2").replace("[08]", "8")
        model = model.replace("[69]", "6").replace("[0-4]", "0").replace("[5-9]", "5")
        board = gpu(vendor=row.vendor, backend=row.vendor, model=model.replace("*", ""), architecture=row.architecture)
        found = expected_links(board)
        told = found is not None and found.told
        assert ("link_active" in requirements(board)) is told, row


@pytest.mark.parametrize(
    "model", ["AMD Instinct MI300X HF", "AMD Instinct MI308X HF", "AMD Instinct MI300X OAM", UNNAMED]
)
@pytest.mark.parametrize(
    ("symbols", "code"),
    [
        (("amdsmi_get_gpu_xgmi_link_status",), "reading.link_active"),
        (("amdsmi_get_gpu_ecc_count", "amdsmi_get_gpu_ecc_enabled"), "reading.ecc_uncorrected_errors"),
        (("amdsmi_get_power_info", "amdsmi_get_gpu_metrics_info"), "reading.power_watts"),
    ],
)
def test_an_amd_board_that_tells_less_than_its_like_is_not_ok(
    fake_amdsmi: FakeAmdSmi, model: str, symbols: tuple[str, ...], code: str
) -> None:
    """It was, under each name but the plain one."""
    fake_amdsmi.set("name", model)
    for symbol in symbols:
        fake_amdsmi.fail(symbol, AmdSmiStatus.NOT_SUPPORTED)
    with Rig(fake_amdsmi) as rig:
        snapshot = rig.look(4)
    assert (snapshot.verdict.state, codes(snapshot)) == (State.UNKNOWN, {code})


@pytest.mark.parametrize(("model", "chip"), [("MI100", 0x908), ("MI210", 0x90A), ("MI250X", 0x90A)])
@pytest.mark.parametrize(("mode", "state"), [(0, State.DEGRADED), (1, State.UNKNOWN)])
def test_an_amd_board_before_mi300_that_counts_no_memory_errors_is_not_ok(
    fake_amdsmi: FakeAmdSmi, model: str, chip: int, mode: int, state: State
) -> None:
    """Whether its error correction is off, or on and not told: it was ok, as if such boards came without."""
    fake_amdsmi.update({"name": f"AMD Instinct {model}", "graphics_version": chip, "ecc_mode": mode})
    with Rig(fake_amdsmi.fail("amdsmi_get_gpu_ecc_count", AmdSmiStatus.NOT_SUPPORTED)) as rig:
        snapshot = rig.look(3)
    assert (snapshot.verdict.state, codes(snapshot)) == (
        state,
        {"reading.ecc_uncorrected_errors" if mode else "memory.ecc_disabled"},
    )


@pytest.mark.parametrize("model", ["NVIDIA H100", "NVIDIA H20Z"])
@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.NOT_READY])
def test_a_module_that_tells_none_of_its_links_is_not_ok(fake_nvml: FakeNvml, model: str, code: NvmlReturn) -> None:
    """As where the driver was told to leave NVLink alone (NVreg_NvLinkDisable)."""
    fake_nvml.update({"name": model, "fabric_state": 0, "link_count": 0})
    with Rig(fake_nvml.fail("field.165", code).fail("nvmlDeviceGetNvLinkState", code)) as rig:
        snapshot = rig.look(4)
    assert (snapshot.verdict.state, codes(snapshot)) == (State.UNKNOWN, {"reading.link_active"})


@pytest.mark.parametrize(
    ("device_id", "name", "chip"),
    [
        ("75a3", "AMD Instinct MI355X", 0x950),
        ("75a0", "AMD Instinct MI350X", 0x950),
        ("74a9", "AMD Instinct MI300X HF", 0x942),
        ("74a5", "AMD Instinct MI325X", 0x942),
    ],
)
@pytest.mark.parametrize("told", [UNNAMED, "N/A", "0x74a9"])
def test_boards_whose_name_the_driver_lacks_are_known_by_their_pci_device(
    fake_amdsmi: FakeAmdSmi, device_id: str, name: str, chip: int, told: str
) -> None:
    """All links of eight modules down were "ok, healthy"."""
    fake_amdsmi.update({"name": told, "graphics_version": chip, "pci_device_id": int(device_id + "1002", 16)})
    with Rig(fake_amdsmi) as rig:
        snapshot = rig.look(3)
        assert {device.model for device in snapshot.devices} == {name}
        assert snapshot.verdict.state is State.OK, codes(snapshot)
        fake_amdsmi.set("link_state", 0)
        assert rig.look().verdict.state is State.FAILED


@pytest.mark.parametrize(
    ("device_id", "told", "model", "virtual"),
    [
        ("0x75a3", UNNAMED, "AMD Instinct MI355X", False),
        ("0x75a3", "N/A", "AMD Instinct MI355X", False),
        ("0x74b6", "AMD Instinct MI308X", "AMD Instinct MI308X VF", True),
        ("0x74bd", "AMD Instinct MI300X HF", "AMD Instinct MI300X VF", True),
        ("0x74b5", UNNAMED, "AMD Instinct MI300X VF", True),
        ("0x74a1", "MI300X-O", "MI300X-O", False),
        ("0x7fff", UNNAMED, "AMD Instinct of tomorrow", False),
        ("N/A", UNNAMED, "AMD Instinct of tomorrow", False),
    ],
)
def test_the_name_that_a_board_tells_stands_unless_it_is_that_of_another(
    tmp_path: Path, device_id: str, told: str, model: str, virtual: bool
) -> None:
    """Of a share libdrm may have the name of its board; of a device that no table has the board tells its product."""
    module = SimpleNamespace(
        AmdSmiLibraryException=OSError,
        amdsmi_get_gpu_asic_info=lambda _handle: {"market_name": told, "device_id": device_id},
        amdsmi_get_gpu_board_info=lambda _handle: {"product_name": "AMD Instinct of tomorrow"},
    )
    progress: Any = SimpleNamespace(call=lambda _text: None, returned=lambda: None, write=lambda _text: None)
    tree = Tree(str(tmp_path), progress)
    device = identify(Library(module, progress), tree, Target(None, "a board"), "0000:0c:00.0", None, None)
    assert device.model == model
    assert device.virtual is virtual


def page(rig: Rig, name: str, told: str) -> None:
    """Let the kernel driver show a page about the board in slot 3 that names its model *name* and its UUID *told*."""
    for slot in range(8):
        file = rig.root / f"proc/driver/nvidia/gpus/{FakeNvml.pci(slot)}/information"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"Model: \t\t {name}\nGPU UUID: \t {told if slot == 3 else FakeNvml.uuid(slot)}\n")


@pytest.mark.parametrize("told", ["GPU-????????-????-????-????-????????????", FakeNvml.uuid(3)])
def test_a_board_whose_page_knows_no_model_is_the_one_that_its_slot_remembers(fake_nvml: FakeNvml, told: str) -> None:
    """The open driver says Unknown of each board that its list of names lacks: that is no other model."""
    with Rig(fake_nvml) as rig:
        page(rig, "Unknown", FakeNvml.uuid(3))
        board = next(device for device in rig.look().devices if device.id == FakeNvml.uuid(3))
        page(rig, "Unknown", told)
        fake_nvml.fail_device(3)
        rig.reboot()
        snapshot = rig.look(2)
    assert codes(snapshot) == {"device.lost"}
    kept = next(device for device in snapshot.devices if device.id == board.id)
    assert (kept.serial, kept.model, kept.pci) == (board.serial, board.model, board.pci)


def test_a_silent_board_and_one_that_is_gone_are_two_losses(fake_nvml: FakeNvml) -> None:
    """After a boot one answers by its page alone, without a name, and another one is on no bus: eight devices."""
    with Rig(fake_nvml) as rig:
        page(rig, "NVIDIA H100 80GB HBM3", FakeNvml.uuid(3))
        before = {device.id: device.serial for device in rig.look(2).devices}
        page(rig, "NVIDIA H100 80GB HBM3", "GPU-????????-????-????-????-????????????")
        (rig.root / f"proc/driver/nvidia/gpus/{FakeNvml.pci(6)}/information").unlink()
        shutil.rmtree(rig.root / PCI / FakeNvml.pci(6))
        fake_nvml.fail_device(3).vanish(6)
        rig.reboot()
        snapshot = rig.look(3)
    lost = {(episode.key.code, episode.key.device) for episode in snapshot.episodes}
    assert lost == {("device.lost", FakeNvml.uuid(3)), ("device.missing", FakeNvml.uuid(6))}
    assert {device.id: device.serial for device in snapshot.devices} == before
    assert str(before[FakeNvml.uuid(6)]) in "".join(episode.finding.message for episode in snapshot.episodes)


@pytest.mark.parametrize(("name", "model"), [("Unknown", NO_MODEL), ("NVIDIA H100 NVL", "NVIDIA H100 NVL")])
def test_a_page_that_knows_no_model_names_none(tmp_path: Path, name: str, model: str) -> None:
    """A board that is not opened has the name of its page, where that is one."""
    file = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    file.parent.mkdir(parents=True)
    file.write_text(f"Model: \t\t {name}\n")
    (board,) = backend_of(Driver(), tmp_path).devices()
    assert (board.model, board.uuid, board.pci) == (model, None, "0000:1b:00.0")


UNNAMED_MODULE: dict[str, float | str] = {
    "count": 4, "name": "NVIDIA Graphics Device", "architecture": 13, "fabric_state": 3, "link_remote_type": 2,
}  # fmt: skip
"""Modules of Rubin under a driver (615) that does not know their name yet."""


@pytest.mark.parametrize(
    ("lacking", "code"),
    [
        ((), None),
        (("field.185", "nvmlDeviceGetPowerUsage"), "reading.power_watts"),
        (("field.12", "nvmlDeviceGetMemoryErrorCounter"), "reading.ecc_uncorrected_errors"),
        (("field.145", "nvmlDeviceGetRemappedRows"), "reading.row_remap_failed"),
        (("field.165", "nvmlDeviceGetNvLinkState"), "reading.link_active"),
    ],
)
def test_a_board_without_a_name_that_has_joined_a_fabric_owes_what_its_like_tell(
    fake_nvml: FakeNvml, lacking: tuple[str, ...], code: str | None
) -> None:
    """Only modules of data centres join a fabric; what says nothing of one may be a board for graphics."""
    fake_nvml.update(UNNAMED_MODULE)
    for call in lacking:
        fake_nvml.fail(call, NvmlReturn.NOT_SUPPORTED)
    with Rig(fake_nvml) as rig:
        assert codes(rig.look(4)) == ({code} if code else set())
        assert rig.look().verdict.state is (State.UNKNOWN if code else State.OK)
    fake_nvml.update({"fabric_state": 0})
    with Rig(fake_nvml) as rig:
        assert rig.look(4).verdict.state is State.OK


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_what_brings_up_links_that_cannot_be_seen_is_the_vendors(
    fake_nvml: FakeNvml, fake_amdsmi: FakeAmdSmi, vendor: str
) -> None:
    """The fabric manager is NVIDIA's: a board with all its xGMI ports disabled was to be mended by one."""
    dark = {"nvidia": fake_nvml.update({"links": 0, "fabric_state": 0}), "amd": fake_amdsmi.set("link_state", 2)}
    with Rig(dark[vendor]) as rig:
        snapshot = rig.look(4)
    assert (snapshot.verdict.state, codes(snapshot)) == (State.UNKNOWN, {"reading.link_active"})
    assert ("fabric manager" in snapshot.verdict.reason) is (vendor == "nvidia")
    assert "inspected" in snapshot.verdict.reason
    assert "permissions" not in snapshot.verdict.reason


def test_what_joined_a_fabric_owes_what_modules_tell_unless_it_is_a_share() -> None:
    """Whatever its name and its chip are; one that says that it has not joined, or cannot, owes what its name says."""
    board = gpu(model="NVIDIA Graphics Device", architecture="rubin")
    share = msgspec.structs.replace(board, virtual=True)
    for told, more in (("completed", MEMORY | ROWS | LINKS), ("not_started", set()), (refused("fabric_state"), set())):
        samples = (sample(board, {("fabric_state", WHOLE): told}),)
        assert owed((board,), samples) == {board.id: BASE | more}
        assert owed((share,), samples) == {share.id: BASE}
    other = gpu("GPU-cccc", vendor="amd", backend="amd", model="a board", architecture=None)
    assert owed((other,), (sample(other, {("fabric_state", WHOLE): "completed"}),)) == {other.id: frozenset()}


@pytest.mark.parametrize(
    ("vendor", "model", "word"),
    [
        ("nvidia", "NVIDIA H100 80GB HBM3", "fabric manager"),
        ("amd", "AMD Instinct MI300X", "xgmi"),
        ("habana", "HL-225", "switches"),
    ],
)
def test_advice_about_links_that_cannot_be_seen_is_of_the_vendor(vendor: str, model: str, word: str) -> None:
    """Of a vendor that no table tells more of they are inspected."""
    board = gpu(vendor=vendor, backend=vendor, model=model)
    view = healthy({("link_active", link(port)): unsupported(port) for port in range(18)}, device=board)
    view = msgspec.structs.replace(view, required={board.id: frozenset({"link_active"})})
    told = of(judge("freshness", view), "reading.link_active", board.id).message
    assert word in told
    assert ("fabric manager" in told) is (vendor == "nvidia")
