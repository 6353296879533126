"""The simulated node as a function of time: the same for everyone who looks, alive, and healthy without a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.backends.amd import items as amd_items
from nodevet.checks.backends.nvidia import items as nvidia_items
from nodevet.checks.core.model import DeviceKind, Instant, Part, Reading, ReadingStatus
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind, measured
from nodevet.checks.engine.baseline import requirements
from nodevet.checks.reference.profiles import load_profile, profile_names
from nodevet.checks.simulation.node import FIRST_PID, Simulation, World
from nodevet.checks.simulation.scenario import Load, Scenario, parse_scenario

DAY = 86_400
GROUPS = ("fast", "slow")
PROFILES = profile_names()


def at(seconds: float) -> Instant:
    """Return a moment so many seconds after boot."""
    return Instant("boot", int(seconds * 1e9), 1.8e9 + seconds)


def world(profile: str, scenario: str = "", *, node: str = "n1", since: float = 0.0) -> World:
    """Return the world of *scenario* that began at *since*."""
    parsed = parse_scenario(scenario, "test.toml", load_profile(profile))
    return World(Simulation(profile=profile, node=node, scenario=parsed, since_ns=int(since * 1e9)))


def everything(node: World, profile: str, now: Instant) -> Iterator[tuple[str, Reading]]:
    """Yield every reading of every device."""
    for backend in load_profile(profile).backends:
        for device in node.devices(backend, now):
            for group in GROUPS:
                for reading in node.readings(device.id, group, now):
                    yield device.id, reading


def values(node: World, profile: str, now: Instant) -> dict[tuple[str, str, Part], object]:
    """Return the value of every reading."""
    return {(device, entry.quantity, entry.part): entry.value for device, entry in everything(node, profile, now)}


@pytest.mark.parametrize("profile", PROFILES)
def test_two_processes_see_the_same_node(profile: str) -> None:
    """Nothing depends on who looks, or on what was looked at before."""
    early = world(profile)
    values(early, profile, at(100))
    assert values(early, profile, at(5000)) == values(world(profile), profile, at(5000))


def test_nodes_of_other_names_and_seeds_go_other_ways() -> None:
    """Three nodes on one dashboard are three lines, of devices of their own."""
    now = at(5000)
    one, two, three = (
        world("dgx-h100"),
        world("dgx-h100", node="n2"),
        world("dgx-h100", "seed = 3"),
    )
    ids = [{device.id for device in node.devices("nvidia", now)} for node in (one, two, three)]
    assert not ids[0] & ids[1] and ids[0] == ids[2]
    power = [
        values(node, "dgx-h100", now)[min(found), "power_watts", DEVICE_POWER]
        for node, found in zip((one, three), (ids[0], ids[2]), strict=True)
    ]
    assert power[0] != power[1]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_reading_is_plausible_and_each_part_is_read_once(profile: str) -> None:
    """As a backend's own are, at rest, under full load and between, whatever the noise is just then."""
    for level in ("", "level = 0", "level = 1"):
        node = world(profile, level)
        for seconds in range(0, 600, 37):
            seen = list(everything(node, profile, at(seconds)))
            assert len({(device, entry.quantity, entry.part) for device, entry in seen}) == len(seen)
            assert all(measured(entry) == entry for _, entry in seen)


@pytest.mark.parametrize("profile", PROFILES)
@given(first=st.floats(0, 3e6), passed=st.floats(0, 1e5))
@settings(max_examples=20, deadline=None)
def test_counters_only_grow(profile: str, first: float, passed: float) -> None:
    """Whatever the load does meanwhile."""
    node = world(profile, "[[load]]\nlevel = 1\nat = 50\nuntil = 4000\n[[load]]\nlevel = 0\nat = 500\n", since=100)
    before, after = (values(node, profile, at(seconds)) for seconds in (first, first + passed))
    for key, value in before.items():
        if QUANTITIES[key[1]].kind is QuantityKind.COUNTER and value is not None:
            assert after[key] >= value  # type: ignore[operator]


def test_counters_do_not_depend_on_when_the_agent_was_started() -> None:
    """A restart of the agent is none of the driver."""
    before, after = (values(world("dgx-h100", since=since), "dgx-h100", at(9000)) for since in (10, 8000))
    assert before == pytest.approx(after)


def test_a_line_of_the_kernel_log_is_told_once() -> None:
    """Wherever the spans that are asked for end."""
    node = world("dgx-h100", '[[fault]]\nkind = "xid"\ncode = 79\ndevice = 0\nat = 60\n')
    spans = [(-1.0, 59.9), (59.9, 60.0), (60.0, 61.0), (61.0, 1000.0)]
    told = [line for span in spans for line in node.kernel_lines(*span)]
    assert told == [(60.0, "NVRM: Xid (PCI:0000:1b:00): 79, pid=5000000, name=simulated, simulated")]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_node_stays_clear_of_every_limit_of_heat_and_power(profile: str) -> None:
    """At full load, in two days of noise, with five degrees in hand."""
    node = world(profile, "level = 1.0")
    for seconds in range(0, 2 * DAY, 701):
        now = at(seconds)
        read = values(node, profile, now)
        for (device, quantity, part), value in read.items():
            if quantity == "temperature_margin_celsius":
                assert value > 10  # type: ignore[operator]
            if quantity == "temperature_celsius" and value is not None:
                limit = read.get((device, "temperature_slowdown_celsius", part))
                assert limit is None or value < limit - 10  # type: ignore[operator]
            if quantity == "power_watts" and part == DEVICE_POWER:
                assert value <= read[device, "power_limit_watts", part]  # type: ignore[operator]


DEVICE_POWER = next(
    row.parts[0] for row in load_profile("dgx-h100").readings("0").fast if row.quantity == "power_watts"
)


@pytest.mark.parametrize("profile", ["dgx-h100", "mi300x-8"])
def test_the_load_of_a_node_comes_and_goes(profile: str) -> None:
    """So that a dashboard shows jobs that begin and end, and heat and power with them."""
    node = world(profile)
    device = node.devices(load_profile(profile).backends[1], at(0))[0].id
    drawn = [values(node, profile, at(seconds))[device, "power_watts", DEVICE_POWER] for seconds in range(0, 6000, 60)]
    assert max(drawn) > 1.5 * min(drawn)  # type: ignore[type-var,operator]
    holders = {
        values(node, profile, at(seconds))[device, "compute_processes", Part()] for seconds in range(0, 6000, 60)
    }
    assert holders == {0, 1}


def test_a_load_of_the_scenario_is_what_its_devices_draw() -> None:
    """While it lasts, and nobody else's devices."""
    node = world("dgx-h100", "level = 0\n[[load]]\nlevel = 1\nat = 10\nuntil = 20\ndevice = 0\n")
    ids = [device.id for device in node.devices("nvidia", at(0))]

    def drawn(slot: int, seconds: float) -> float:
        return float(values(node, "dgx-h100", at(seconds))[ids[slot], "power_watts", DEVICE_POWER])  # type: ignore[arg-type]

    assert drawn(0, 15) > 600 > 100 > drawn(1, 15)
    assert drawn(0, 9) < 100 > drawn(0, 20)


def test_energy_is_the_integral_of_power() -> None:
    """Within what the noise of the power hides."""
    node = world("dgx-h100")
    device = node.devices("nvidia", at(0))[0].id

    def read(quantity: str, seconds: float) -> float:
        return float(values(node, "dgx-h100", at(seconds))[device, quantity, DEVICE_POWER])  # type: ignore[arg-type]

    used = read("energy_joules", 9000) - read("energy_joules", 6000)
    drawn = sum(read("power_watts", seconds) for seconds in range(6000, 9000, 20)) * 20
    assert used == pytest.approx(drawn, rel=0.01)


def test_processes_of_simulated_jobs_are_nobodys() -> None:
    """No process of this machine can have their ids."""
    assert FIRST_PID > 4_194_304


@pytest.mark.parametrize("profile", PROFILES)
def test_everything_that_a_model_must_report_is_there(profile: str) -> None:
    """Or a healthy simulated node would be unknown."""
    node, now = world(profile), at(1000)
    read = {(device, entry.quantity) for device, entry in everything(node, profile, now) if entry.value is not None}
    for backend in load_profile(profile).backends:
        for device in node.devices(backend, now):
            assert {(device.id, quantity) for quantity in requirements(device)} <= read


def described(profile: str) -> dict[tuple[str, str], ReadingStatus]:
    """Return what an accelerator of *profile* reads, and whether it can."""
    rows = load_profile(profile).readings("0").rows
    return {
        (row.quantity, str(part)): ReadingStatus.UNSUPPORTED if row.unsupported else ReadingStatus.OK
        for row in rows
        for part in row.parts
    }


def test_an_h100_reads_what_the_backend_asks_of_one() -> None:
    """Nothing more; of what is asked only that is left out which a Hopper does not have."""
    links = load_profile("dgx-h100").accelerators
    assert links is not None
    asked = (*nvidia_items.fast_items(links.links, "12.570.124.06", None), *nvidia_items.slow_items(links.links))
    everything_asked = {(item.quantity, str(item.part)) for item in asked}
    wanted = {(item.quantity, str(item.part)) for item in asked if not item.optional}
    read = described("dgx-h100")
    assert read.keys() <= everything_asked | {
        # Drivers from 575 on count these apart.
        ("throttle_seconds", f"reason {name}")
        for name in ("software_thermal", "hardware_thermal", "power_brake")
    }
    assert {part for _, part in wanted - read.keys()} <= {
        "reason board_limit",
        "reason reliability",
        "reason vendor:unknown",
    }


def test_an_mi300x_reads_what_the_backend_asks_of_one() -> None:
    """Nothing more, and nothing less."""
    throttle = amd_items.ThrottleClock(lambda: 0.0)
    blocks = ("UMC", "SDMA", "GFX", "MMHUB", "PCIE_BIF", "XGMI_WAFL")
    asked = (*amd_items.fast_items(8, throttle), *amd_items.slow_items(8, blocks))
    everything_asked = {(item.quantity, str(item.part)) for item in asked}
    wanted = {(item.quantity, str(item.part)) for item in asked if not item.optional}
    read = described("mi300x-8")
    assert read.keys() <= everything_asked
    assert {quantity for quantity, _ in wanted - read.keys()} <= {
        "temperature_slowdown_celsius",  # of the edge, which it has not
        "temperature_shutdown_celsius",
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_every_probe_measures_every_device_that_computes(profile: str) -> None:
    """Near the rate of its profile; a device with another fault is not measured until that is over."""
    node = load_profile(profile)
    slot = "0" if node.accelerators else '"cpu-0"'
    ill = world(profile, f'[[fault]]\nkind = "overheat"\ndevice = {slot}\nat = 5\nuntil = 10\n')
    healthy, during, after = ill.probe(at(1)), ill.probe(at(7)), ill.probe(at(11))
    kind = DeviceKind.ACCELERATOR if node.accelerators else DeviceKind.CPU
    count = len([d for backend in node.backends for d in ill.devices(backend, at(1)) if d.kind is kind])
    assert [len(figures) for figures in (healthy, during, after)] == [count, count - 1, count]
    assert all(entry.tflops == pytest.approx(node.probe.tflops, rel=0.01) for entry in healthy)
    assert all(entry.mismatches == 0 for entry in healthy)


def test_a_simulation_travels_to_the_readers_whole() -> None:
    """As the JSON that the agent writes."""
    import msgspec

    scenario = Scenario(seed=4, loads=(Load(level=0.5, at=1.0, devices=("0",)),))
    sent = Simulation(profile="dgx-h100", node="n1", scenario=scenario, since_ns=7)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Simulation) == sent
