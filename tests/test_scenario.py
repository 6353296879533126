"""Scenarios: what may be written, and how a mistake is told."""

from __future__ import annotations

import pytest

from nodevet.checks.core.errors import ConfigurationError, UsageError
from nodevet.checks.reference.profiles import load_profile, part_of, profile_names
from nodevet.checks.reference.tables import load_table
from nodevet.checks.simulation.faults import KINDS, RANGES, SETTINGS, Effect, LogLine
from nodevet.checks.simulation.scenario import parse_scenario

DGX = "dgx-h100"


def refusal(text: str, profile: str = DGX) -> str:
    """Return why *text* is refused."""
    with pytest.raises(ConfigurationError) as caught:
        parse_scenario(text, "s.toml", load_profile(profile))
    return str(caught.value)


def fault(*lines: str) -> str:
    """Return a scenario of one fault."""
    return "\n".join(("[[fault]]", *lines))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90.0), ("1.5", 1.5), ('"30s"', 30.0), ('"5m"', 300.0), ('"1h30m"', 5400.0), ('"250ms"', 0.25)],
)
def test_times_are_numbers_of_seconds_or_spans(written: str, seconds: float) -> None:
    """As people write them."""
    text = fault('kind = "lost"', "device = 3", f"at = {written}")
    assert parse_scenario(text, "s.toml", load_profile(DGX)).faults[0].at == seconds


@pytest.mark.parametrize(
    ("device", "profile", "targets"),
    [
        ("3", DGX, ("3",)),
        ("[0, 7]", DGX, ("0", "7")),
        ('"all"', DGX, tuple("01234567")),
        ('"cpu-1"', DGX, ("cpu-1",)),
        ('"all"', "cpu-node", ("cpu-0", "cpu-1")),
    ],
)
def test_devices_are_slots_or_names(device: str, profile: str, targets: tuple[str, ...]) -> None:
    """One, several, or all that the node computes on."""
    text = fault('kind = "throttle"', f"device = {device}")
    assert parse_scenario(text, "s.toml", load_profile(profile)).faults[0].devices == targets


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[fault]\n", 1, "not valid TOML"),
        ("tempo = 2", 1, "tempo: unknown key, allowed: title, seed, level"),
        ("level = 2", 1, "level: found 2, expected a number from 0 to 1"),
        ('probe_every = "often"', 1, "probe_every: found 'often', expected a time of at least 1 s"),
        ('fault = "lost"', 1, "fault: expected tables, each begun with [[fault]]"),
        ("[[fault]]\ndevice = 3", 1, "kind: found None"),
        ('[[fault]]\ndevice = 3\nkind = "overheet"', 3, "kind: found 'overheet', did you mean overheat?"),
        ('[[fault]]\nkind = "fire"\ndevice = 3', 2, "allowed: overheat, throttle, ecc_uncorrected"),
        ('[[fault]]\nkind = "lost"', 1, "device: is missing; devices: slots 0 to 7, cpu-0, cpu-1, memory, node, all"),
        ('[[fault]]\nkind = "lost"\ndevice = 8', 3, "device: found 8, there are slots 0 to 7"),
        ('[[fault]]\nkind = "lost"\ndevice = "cpu-0"', 3, "lost is about accelerators: slots 0 to 7"),
        (
            '[[fault]]\nkind = "lost"\ndevice = 3\nlink = 2',
            4,
            "link: unknown key, allowed for the kind lost: kind, at, until",
        ),
        ('[[fault]]\nkind = "link_down"\ndevice = 3\nlink = 18', 4, "link: found 18, expected 0 to 17"),
        ('[[fault]]\nkind = "lost"\ndevice = 3\nat = "soon"', 4, "at: found 'soon', expected a time"),
        ('[[fault]]\nkind = "lost"\ndevice = 3\nat = -1', 4, "at: found -1"),
        ('[[fault]]\nkind = "lost"\ndevice = 3\nat = 20\nuntil = 10', 5, "until: found 10, expected a time after"),
        ('[[fault]]\nkind = "xid"\ndevice = 3', 2, "kind: xid needs the setting code"),
        ('[[fault]]\nkind = "xid"\ndevice = 3\ncode = "a"', 4, "code: Expected `int"),
        ('[[fault]]\nkind = "set"\ndevice = 3\nquantity = "power_wats"\nvalue = 1', 4, "did you mean power_watts?"),
        ('[[fault]]\nkind = "set"\ndevice = 3\nquantity = "power_watts"', 1, "value: expected either a value"),
        (
            '[[fault]]\nkind = "set"\ndevice = 3\nquantity = "power_watts"\npart = "link 3"\nvalue = 1',
            5,
            "part: found 'link 3', power_watts is about a power_scope",
        ),
        ('[[fault]]\nkind = "set"\ndevice = "node"\nquantity = "power_watts"\nvalue = 1', 3, "changes nothing"),
        ('[[fault]]\nkind = "ecc_uncorrected"\ndevice = "cpu-0"', 3, "ecc_uncorrected changes nothing that cpu-0"),
        ('[[fault]]\nkind = "throttle"\ndevice = "memory"', 3, "throttle changes nothing that memory"),
        ('[[load]]\nlevel = "high"', 2, "level: found 'high'"),
        ("[[load]]\nlevel = 1\nuntill = 3", 3, "untill: unknown key, did you mean until?"),
        (
            '[[fault]]\nkind = "overheat"\ndevice = 3\ncelsius = nan',
            4,
            "celsius: found nan, expected a number",
        ),
        ('[[fault]]\nkind = "throttle"\ndevice = 3\nratio = 1e308', 4, "ratio: found 1e+308, expected a number from 0"),
        ('[[fault]]\nkind = "ecc_uncorrected"\ndevice = 3\ncount = -5', 4, "count: found -5, expected a number from 1"),
        ('[[fault]]\nkind = "xid"\ndevice = 3\ncode = 79\ntext = "a\\nb"', 5, "text: found 'a\\nb', expected one line"),
        ('[[fault]]\nkind = "set"\ndevice = 3\nquantity = "power_watts"\nvalue = inf', 5, "value: found inf"),
        ('[[fault]]\nkind = "set"\ndevice = 3\nquantity = "power_watts"\nvalue = "hot"', 5, "expected a number"),
        ('[[fault]]\nkind = "set"\ndevice = 3\nquantity = "row_remap_failed"\nvalue = 1', 5, "expected true or false"),
        ('seed = "a"', 1, "seed: found 'a', expected a whole number"),
        ("title = 3", 1, "title: found 3, expected text"),
        ('title = "\\u001b[31m"', 1, "title: found '\\x1b[31m', expected one line"),
        (f"seed = 0x{'f' * 9000}", 1, "seed: found a number of 36000 bits"),
        (f"seed = {'9' * 9000}", 1, "not valid TOML"),
        (f"seed = {'[' * 9000}", 1, "not valid TOML"),
        (f'[[fault]]\nkind = "lost"\ndevice = [[0x{"f" * 9000}]]', 3, "device: found a number of 36000 bits"),
        (f'[[fault]]\nkind = "{"x" * 9000}"', 2, "kind: found 'xxxx"),
        ("[[load]]\nlevel = 1\n" * 51, 1, "load: found 51 tables, expected at most 50"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_is_allowed(text: str, line: int, words: str) -> None:
    """So that a person finds it without reading the code."""
    said = refusal(text)
    assert words in said
    assert f"line {line}" in said or "not valid TOML" in said
    assert said.startswith("s.toml") and len(said) < 1000


def test_every_mistake_is_told_at_once() -> None:
    """One line each, with the number of its table."""
    said = refusal('[[fault]]\nkind = "fire"\n[[fault]]\nkind = "lost"\ndevice = 9\n').splitlines()
    assert [line.split(": ")[1] for line in said] == ["fault 1", "fault 2"]
    said = refusal('titel = "x"\nseed = "a"\nlevel = 2\n[[fault]]\nkind = "fire"\n').splitlines()
    assert [line.split(": ")[1] for line in said] == ["titel", "seed", "level", "fault 1"]


def test_of_many_mistakes_the_first_are_told() -> None:
    """A file that is no scenario at all neither fills the log nor holds up the agent."""
    said = refusal("[[fault]]\n" * 200).splitlines()
    assert len(said) == 21 and said[-1] == "s.toml: 20 mistakes, the rest was not looked at"


def test_an_xid_is_of_nvidia_alone() -> None:
    """On another vendor's node it is refused with the way that there is."""
    assert "use kernel_log with text" in refusal(fault('kind = "xid"', "device = 0", "code = 79"), "mi300x-8")


def test_a_node_without_accelerators_has_no_faults_of_them() -> None:
    """It says so."""
    assert "none here" in refusal(fault('kind = "lost"', 'device = "cpu-0"'), "cpu-node")


def test_a_socket_that_tells_no_limit_cannot_be_too_hot() -> None:
    """Nobody would see it: an EPYC tells its temperature and nothing to compare it with."""
    text = fault('kind = "overheat"', 'device = "cpu-0"')
    assert "overheat changes nothing that cpu-0" in refusal(text, "mi300x-8")
    assert parse_scenario(text, "s.toml", load_profile(DGX)).faults


def test_an_unknown_profile_is_told_with_those_that_exist() -> None:
    """As wrong usage."""
    with pytest.raises(UsageError, match="cpu-node, dgx-h100, mi300x-8"):
        load_profile("dgx-h300")


def test_every_setting_of_a_kind_is_explained() -> None:
    """And none that no kind takes."""
    assert {name for kind in KINDS.values() for name in kind.settings} == SETTINGS.keys()
    assert RANGES.keys() < SETTINGS.keys()


def test_tables_of_faults_name_kinds_that_exist_and_settings_that_these_take() -> None:
    """A row of a kind that nobody can ask for would never be seen."""
    effects, lines = load_table("simulated_faults.csv", Effect), load_table("simulated_lines.csv", LogLine)
    assert {row.kind for row in effects} | {row.kind for row in lines} <= KINDS.keys()
    for row in effects:
        assert row.change in ("set", "scale", "above", "add", "grow"), row
        assert not row.setting or row.setting in KINDS[row.kind].settings, row
        assert row.part == "*" or part_of(row.part.format(link=0)), row


def test_every_row_of_effects_meets_a_reading() -> None:
    """Of the devices that it names, in some profile: a row that changes nothing is a drill without fire."""
    read = {
        (subject, row.quantity, str(part))
        for profile in map(load_profile, profile_names())
        for target in profile.targets
        for subject in ("*", profile.subject(target))
        for row in profile.readings(target).rows
        if not row.unsupported
        for part in row.parts
    }
    for effect in load_table("simulated_faults.csv", Effect):
        parts = {part for subject, quantity, part in read if (subject, quantity) == (effect.device, effect.quantity)}
        assert effect.part.format(link=0) in parts or (effect.part == "*" and parts), effect
