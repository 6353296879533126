"""The status page as markup: what it says of each kind of node, and what no name of hardware can make it say."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

import msgspec
import pytest
from fakes.page_nodes import EVIL, NODES
from fakes.snapshots import (
    at,
    burn_in,
    cpu_node,
    degraded_node,
    failed_node,
    gpu,
    gpu_id,
    gpu_node,
    open_episode,
    starting_node,
    with_findings,
)

from nodevet.checks.core.model import (
    NODE,
    CheckRun,
    DeviceKind,
    EpisodeState,
    EventCount,
    FaultClass,
    Finding,
    Instant,
    Limit,
    Link,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Snapshot,
    State,
)
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.web.http import HttpServer
from nodevet.exporters.web.page.render import LONGEST_TEXT, StatusPage


def render(snapshot: Snapshot, *, seconds_later: float = 3.0, **more: object) -> str:
    """Return the page of *snapshot* as somebody sees it *seconds_later*."""
    page = StatusPage(lambda: at(-seconds_later))
    return page.render(snapshot, **more).decode()  # type: ignore[arg-type]


def parsed(page: str) -> ElementTree.Element:
    """Return the document; a page that is not well-formed raises."""
    return ElementTree.fromstring(page)  # noqa: S314 - our own page


def text_of(page: str) -> str:
    """Return all that is written on *page*, without its style."""
    return " ".join("".join(parsed(re.sub(r"<style>.*?</style>", "", page, flags=re.S)).itertext()).split())


def classes(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the elements of *root* that carry the class *name*."""
    return [part for part in root.iter() if name in part.get("class", "").split()]


def cards(page: str) -> dict[str, str]:
    """Return what each card says, by its heading."""
    found = {}
    for card in classes(parsed(page), "card"):
        heading = card.find(".//h3")
        assert heading is not None
        found["".join(heading.itertext())] = " ".join(" ".join(card.itertext()).split())
    return found


def with_readings(snapshot: Snapshot, replace: Callable[[Reading], Reading | None]) -> Snapshot:
    """Return *snapshot* with every reading of an accelerator put through *replace*; None drops it."""
    samples = tuple(
        msgspec.structs.replace(sample, readings=tuple(new for new in map(replace, sample.readings) if new is not None))
        if sample.backend == "nvidia"
        else sample
        for sample in snapshot.samples
    )
    return msgspec.structs.replace(snapshot, samples=samples)


@pytest.fixture(params=NODES)
def page(request: pytest.FixtureRequest) -> str:
    """The page of every kind of node."""
    return render(NODES[request.param](), report=True)


def test_every_page_is_well_formed_and_needs_nothing(page: str) -> None:
    """It parses strictly, runs nothing, styles nothing inline, and names no address but its own."""
    root = parsed(page)
    assert not [part.tag for part in root.iter() if part.tag in ("script", "img", "iframe", "object", "form")]
    for part in root.iter():
        assert not [name for name in part.attrib if name == "style" or name.startswith("on")], part.tag
        target = part.get("href") or part.get("src") or "#"
        assert target[0] in "#/" or target.startswith("data:image/svg+xml,"), target
        assert not target.startswith("//")


def test_every_anchor_leads_somewhere(page: str) -> None:
    """No id stands twice, and each link within the page and each label has what it names."""
    root = parsed(page)
    known = [part.get("id", "") for part in root.iter() if part.get("id")]
    assert len(known) == len(set(known))
    wanted = {part.get("href", "")[1:] for part in root.iter() if part.get("href", "").startswith("#")}
    wanted |= {part.get("aria-labelledby", "") for part in root.iter() if part.get("aria-labelledby")}
    assert wanted - set(known) == set()


def test_every_page_can_be_heard(page: str) -> None:
    """One main heading, a heading per section, a scope for every head of a table, and words beside every shape."""
    root = parsed(page)
    assert len(list(root.iter("h1"))) == 1
    assert root.get("lang") == "en"
    assert all(section.get("aria-labelledby") or section.get("aria-label") for section in root.iter("section"))
    assert all(head.get("scope") in ("col", "row") for head in root.iter("th"))
    assert all(shape.get("aria-hidden") == "true" for shape in root.iter("svg"))
    assert all("".join(badge.itertext()).strip() for badge in classes(root, "badge"))
    assert all("".join(cell.itertext()).strip() for cells in classes(root, "map") for cell in cells.iter("td"))


@pytest.mark.parametrize("state", ["ok", "degraded", "failed", "unknown"])
def test_the_verdict_stands_first_with_reason_and_remedy(state: str) -> None:
    """Word, title, reason and what to do, as the API says them."""
    snapshot = NODES[state]()
    page = render(snapshot)
    root = parsed(page)
    assert re.findall(r'id="verdict">(\w+)<', page) == [state]
    assert root.findtext("head/title") == f"n0042: {state}"
    (hero,) = classes(root, "hero")
    assert snapshot.verdict.reason in "".join(hero.itertext())
    assert ("Action:" in "".join(hero.itertext())) is (state != "ok")


def test_findings_say_what_to_do_since_when_and_how_they_end() -> None:
    """Value with unit, limit with its source, action in words, times, and the row of the clearing table."""
    page = text_of(render(degraded_node()))
    for words in (
        "thermal.margin",
        "on GPU 2, sensor core",
        "open, hardware fault",
        "core is 3 degrees below its slowdown temperature",
        "3 °C",
        "<= 5 °C table limits.csv thermal.margin",
        "inspect the node",
        "2026-11-20 09:59:30 UTC 30 s ago; seen 3 times, last 0 s ago",
        "3 good samples in a row",
    ):
        assert words in page, words


def test_a_known_code_is_explained_on_the_page() -> None:
    """The finding leads to the meaning of its code, its remedy, and where both come from."""
    page = parsed(render(failed_node()))
    (about,) = [part for part in page.iter() if part.get("id") == "about-nvidia.xid.79"]
    said = " ".join("".join(about.itertext()).split())
    assert "Action: drain and" in said
    assert "Clears on a passed re-test (nodevet burn-in) after a reboot" in said
    assert "Source:" in said


def test_a_node_without_findings_says_what_that_rests_on() -> None:
    """None found is only as good as what was looked at; before a check ran, it is nothing."""
    assert "None. 9 checks ran, 90 comparisons passed." in text_of(render(gpu_node()))
    assert "No check has run yet." in text_of(render(starting_node()))


def test_findings_stand_in_the_order_of_the_public_document() -> None:
    """Page and API agree on what there is, and on what is gravest."""
    warned = degraded_node()
    failing = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="link 3 is down", device=gpu_id(1))
    snapshot = msgspec.structs.replace(warned, episodes=(*warned.episodes, open_episode(failing)))
    shown = [item.findtext(".//code/a") for item in classes(parsed(render(snapshot)), "findings")[0].iter("li")]
    assert shown == [finding.code for finding in status_document(snapshot).findings]
    assert shown == ["link.down", "thermal.margin"]


def test_an_acknowledged_finding_shows_who_when_until_when_and_why() -> None:
    """The actor is a number, or somebody in SLURM: no name of a user is known to the agent."""
    node = degraded_node()
    (episode,) = node.episodes
    known = msgspec.structs.replace(
        episode,
        state=EpisodeState.ACKNOWLEDGED,
        note="fan is ordered",
        actor="uid 1000",
        acknowledged=at(60),
        until=at(-3600),
    )
    page = text_of(render(msgspec.structs.replace(node, episodes=(known,))))
    assert "Notefan is ordered" in page
    assert "acknowledged, hardware fault" in page
    assert "Acknowledgedby uid 1000 on 2026-11-20 09:59:00 UTC, until 2026-11-20 11:00:00 UTC" in page
    assert "Acknowledgement. thermal.margin: ends at 2026-11-20 11:00:00 UTC" in page
    assert "Findings0 open1 acknowledged" in page


def test_the_figure_of_findings_counts_what_is_listed() -> None:
    """It never says none above findings that wait to be confirmed."""
    node = degraded_node()
    waiting = tuple(msgspec.structs.replace(entry, state=EpisodeState.PENDING) for entry in node.episodes)
    assert "Findings0 open1 not confirmed" in text_of(render(msgspec.structs.replace(node, episodes=waiting)))
    assert "Findings1 open" in text_of(render(node))
    assert "Findingsnone" in text_of(render(gpu_node()))


def test_what_could_not_be_judged_is_one_line_per_device() -> None:
    """A device that cannot be read lacks dozens of readings for one reason."""
    missing = tuple(
        Finding(check="thermal", code=f"temperature.{n}", outcome=Outcome.UNMEASURED, message="?", device=gpu_id(3))
        for n in range(9)
    )
    snapshot = gpu_node(findings=(*gpu_node().findings, *missing))
    page = render(snapshot)
    assert len(list(classes(parsed(page), "findings")[0].iter("li"))) == 1
    said = "GPU 3 could not be judged by temperature.0, temperature.1, temperature.2, temperature.3, temperature.4, "
    assert f"{said}temperature.5 and 3 more" in text_of(page).replace("judgedby", "judged by")


def test_a_card_shows_what_the_device_reads_with_its_limits() -> None:
    """Model, place, heat beside the device's own limit, power beside its cap, load, memory, clock and restraint."""
    said = cards(render(gpu_node()))["GPU 3"]
    for words in (
        "ok", "NVIDIA H100 80GB HBM3", "0000:4b:00.0 · NUMA 0", "Temperature, core 37 °C limit 87 °C",
        "Temperature, memory 45 °C", "Power 74 W limit 700 W", "Utilization 0 %", "Memory 1 MiB of 79.6 GiB",
        "Clock 345 MHz of 1,980 MHz", "Throttled no",
    ):  # fmt: skip
        assert words in said, words


def test_a_board_that_tells_neither_maker_nor_model_has_the_name_of_the_node() -> None:
    """As a virtual machine's: two words `unknown` would say nothing."""
    snapshot = cpu_node()
    device = msgspec.structs.replace(snapshot.devices[0], id=NODE, kind=DeviceKind.NODE, vendor="unknown")
    for model, said in (("unknown", snapshot.node), ("PowerEdge R760", "PowerEdge R760")):
        board = msgspec.structs.replace(device, model=model)
        page = render(msgspec.structs.replace(snapshot, devices=(*snapshot.devices, board)))
        assert cards(page)["Node"].startswith(f"Node {said} Linux")


def test_a_reason_that_holds_the_clock_down_is_named() -> None:
    """Idle is no restraint; a power cap is one."""

    def capped(reading: Reading) -> Reading:
        active = reading.quantity == "throttle_active" and reading.part.name == "power_cap"
        return msgspec.structs.replace(reading, value=True) if active else reading

    assert "Throttled power cap" in cards(render(with_readings(gpu_node(), capped)))["GPU 0"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(ReadingStatus.DENIED, "not permitted"), (ReadingStatus.ERROR, "could not be read")],
)
def test_what_was_not_measured_is_never_a_zero(status: ReadingStatus, words: str) -> None:
    """A refused reading says so, and has neither a figure nor a bar."""

    def refused(reading: Reading) -> Reading:
        return Reading(reading.quantity, None, reading.part, status, "no")

    page = render(with_readings(gpu_node(), refused))
    said = cards(page)["GPU 0"]
    assert f"Power {words}" in said
    assert f"Throttled {words}" in said
    assert not re.search(r"\d+ (W|°C|%|MiB)", said)
    assert "144 links up, 144 unknown" in text_of(page)


def test_what_a_device_does_not_support_is_left_out() -> None:
    """A board without a fan or a link is no worse for it."""

    def unsupported(reading: Reading) -> Reading:
        if reading.quantity != "power_watts":
            return reading
        return Reading(reading.quantity, None, reading.part, ReadingStatus.UNSUPPORTED, "no")

    assert "Power" not in cards(render(with_readings(gpu_node(), unsupported)))["GPU 0"]


def test_old_readings_are_not_the_present() -> None:
    """A device that was read last an hour ago shows when, and no figure of then."""
    node = gpu_node()
    samples = tuple(
        msgspec.structs.replace(sample, time=at(3600)) if sample.device == gpu_id(0) else sample
        for sample in node.samples
    )
    said = cards(render(msgspec.structs.replace(node, samples=samples)))
    assert "stale: last read 60 min ago" in said["GPU 0"]
    assert "°C" not in said["GPU 0"]
    assert "stale" not in said["GPU 1"]


def test_a_lost_device_says_so_and_leads_to_its_finding() -> None:
    """The card of what fell off the bus has no figures but the failure and the code."""
    said = cards(render(failed_node()))["GPU 5"]
    assert "failed" in said
    assert "lost: GPU is lost" in said
    assert "nvidia.xid.79" in said
    assert "°C" not in said


def test_the_limit_colours_the_row_that_broke_it() -> None:
    """A finding about heat marks the row of heat on that device alone."""
    root = parsed(render(degraded_node()))
    marked = [row for row in classes(root, "row") if "warn" in row.get("class", "").split()]
    assert [row.findtext("dt") for row in marked] == ["Temperature, core"]


@pytest.mark.parametrize(
    ("later", "complaint", "words"),
    [
        (31, None, "The last verdict is older than 30 s."),
        (4000, None, "The last verdict is older than 30 s."),
        (1, "the main loop has made no turn for 45 s", "The main loop has made no turn for 45 s."),
    ],
)
def test_a_stale_page_takes_its_verdict_back(later: float, complaint: str | None, words: str) -> None:
    """A judgement that nobody renews is not known to be true: unknown, never a green word."""
    page = render(gpu_node(), seconds_later=later, complaint=complaint)
    assert re.findall(r'id="verdict">(\w+)<', page) == ["unknown"]
    assert words in text_of(page)
    assert "the last verdict was ok" in text_of(page)


def test_a_judgement_of_another_boot_is_stale() -> None:
    """What was true before a reboot is history."""
    page = StatusPage(lambda: Instant("another", at().boottime_ns, at().wall_seconds)).render(gpu_node()).decode()
    assert re.findall(r'id="verdict">(\w+)<', page) == ["unknown"]
    assert "before the last boot" in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "simulated",
            "Simulated node. No value on this page was measured on hardware. No gate closes, and nothing drains it.",
        ),
        ("starting", "Starting. The first round of reading is not complete."),
        ("stopped", "Stopping. The agent is stopping"),
        ("released", "Released. Devices of host, nvidia are released (nodevet release) and not read"),
    ],
)
def test_a_banner_says_what_must_be_known_first(name: str, words: str) -> None:
    """Before the verdict, and only where it applies."""
    page = render(NODES[name]())
    assert words in text_of(page)
    assert page.index('class="banner') < page.index('id="verdict"')
    assert 'class="banner' not in render(gpu_node())


def test_links_are_a_square_each() -> None:
    """Up, down, errors and unknown differ by sign and word; a row and the whole are summed up."""

    def broken(reading: Reading) -> Reading | None:
        if reading.quantity == "link_active" and reading.part.index == 4:
            return msgspec.structs.replace(reading, value=False)
        if reading.quantity == "link_active" and reading.part.index == 5:
            return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, "no")
        if reading.quantity == "link_replay_errors" and reading.part.index == 6:
            return msgspec.structs.replace(reading, value=7)
        return reading

    (drawn,) = classes(parsed(render(with_readings(gpu_node(), broken))), "map")
    rows = list(drawn.findall("tbody/tr"))
    assert len(rows) == 8
    cells = ["".join(cell.itertext()) for cell in rows[0].findall("td")]
    assert cells[3:7] == ["up", "✕down", "?unknown", "7up, 7 errors"]
    assert cells[-1] == "16 of 18 7 errors"
    assert drawn.findtext("caption") == "NVLink: 128 of 144 links up, 8 unknown"


def test_a_link_with_a_finding_is_marked() -> None:
    """The outline of a link with a finding."""
    finding = Finding(
        check="links",
        code="link.down",
        outcome=Outcome.FAIL,
        message="down",
        device=gpu_id(2),
        part=Part(PartKind.LINK, index=9),
    )
    root = parsed(render(with_findings(gpu_node(), (finding,), State.FAILED)))
    assert [cell.get("title") for cell in classes(root, "found") if cell.tag == "td"] == ["link 9: up"]


def test_links_that_know_their_peers_are_a_matrix() -> None:
    """Seven links of eight devices: a row and a column per device, and nothing from a device to itself."""
    (drawn,) = classes(parsed(render(NODES["mesh"]())), "map")
    rows = drawn.findall("tbody/tr")
    assert [len(row.findall("td")) for row in rows] == [9] * 8
    assert drawn.findtext("caption") == "xGMI: 55 of 56 links up"
    assert ["".join(cell.itertext()) for cell in rows[2].findall("td")] == [
        "up", "up", "itself", "up", "up", "✕down", "up", "up", "6 of 7",
    ]  # fmt: skip


def test_several_links_of_a_pair_are_as_good_as_the_worst() -> None:
    """Two links to the same peer are one square; one of them down is down, and the words count them."""
    node = gpu_node()
    pair = tuple(gpu(n, links=tuple(Link(port, gpu_id(1 - n)) for port in range(2))) for n in range(2))

    def first_down(reading: Reading) -> Reading | None:
        if reading.quantity == "link_active" and reading.part.index == 0:
            return msgspec.structs.replace(reading, value=False)
        return reading if reading.part.kind is not PartKind.LINK or (reading.part.index or 0) < 2 else None

    (drawn,) = classes(parsed(render(with_readings(msgspec.structs.replace(node, devices=pair), first_down))), "map")
    assert [cell.get("title") for cell in drawn.iter("td") if cell.get("title")] == [
        "to GPU 1: 1 of 2 up",
        "to GPU 0: 1 of 2 up",
    ]
    assert [cell.get("class") for cell in drawn.iter("td") if cell.get("title")] == ["down", "down"]


def test_links_of_a_partitioned_device_are_not_called_down() -> None:
    """The links of a partitioned device read as down."""
    node = gpu_node()
    split = tuple(
        msgspec.structs.replace(
            sample,
            readings=(
                Reading("partitioned", value=True),
                *(
                    msgspec.structs.replace(r, value=False) if r.quantity == "link_active" else r
                    for r in sample.readings
                ),
            ),
        )
        if sample.device == gpu_id(0) and sample.group == "slow"
        else sample
        for sample in node.samples
    )
    page = text_of(render(msgspec.structs.replace(node, samples=split)))
    assert "NVLink: 126 of 144 links up, 18 unknown" in page


def test_a_node_without_links_has_no_map() -> None:
    """Processors have none."""
    assert "links-name" not in render(cpu_node())


def rows_of(page: str, section: str) -> list[list[str]]:
    """Return the texts of the cells of the table in the section whose heading has the id *section*."""
    (found,) = [part for part in parsed(page).iter("section") if part.get("aria-labelledby") == section]
    return [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in found.findall(".//tbody/tr")]


def test_burn_ins_show_rate_share_and_what_was_verified() -> None:
    """One row per device and number format in the order of the devices, wrong products in the open."""
    results = (*gpu_node().results[1:], burn_in(gpu_id(0), 12.5, 0.4, wrong=3))
    rows = rows_of(render(gpu_node(results=results), report=True), "burn-in-name")
    assert rows[0] == [
        "GPU 0", "gemm bfloat16", "12.50 TFLOPS", "40.0 %", "90,112", "3", "100 s ago 2026-11-20 09:58:20 UTC",
    ]  # fmt: skip
    assert [row[0] for row in rows] == [f"GPU {index}" for index in range(8)]


def test_a_load_that_died_shows_why() -> None:
    """No figures, the state and its detail."""
    died = Result(
        workload="gemm",
        devices=(gpu_id(0),),
        state=ResultState.DIED,
        started=at(20),
        ended=at(10),
        detail="out of memory",
    )
    (row,) = rows_of(render(gpu_node(results=(died,))), "burn-in-name")
    assert row[:3] == ["GPU 0", "gemm", "unknown died: out of memory"]


def test_without_a_load_nothing_is_claimed_about_work() -> None:
    """Reading a node proves nothing about what it computes."""
    assert "no result is verified" in text_of(render(NODES["one processor"]()))


def test_the_agent_shows_readers_checks_and_what_troubles_it() -> None:
    """A reader that hung, a check that did not run, a refused configuration, a notice."""
    node = gpu_node()
    hung = msgspec.structs.replace(node.readers[1], state=ReaderState.HUNG, hangs=2, detail="nvmlDeviceGetPowerUsage")
    run = CheckRun(check="thermal", time=at(), duration_seconds=0.1, success=False, error="KeyError: x")
    agent = msgspec.structs.replace(
        node.agent, configuration_accepted=False, configuration_message="reload refused: no", notices=("store is full",)
    )
    page = text_of(render(msgspec.structs.replace(node, readers=(hung,), checks=(run,), agent=agent)))
    for words in (
        "nvmlDeviceGetPowerUsage; hung 2 times", "did not run: KeyError: x", "reload refused: no", "store is full",
        "rejected: the configuration on disk is not in force",
    ):  # fmt: skip
        assert words in page, words


def test_the_gate_is_told() -> None:
    """Closed by the fault that closes it, open otherwise, and none where the node is simulated."""
    assert "closed by nvidia.xid.79 (mode drain)" in text_of(render(failed_node()))
    assert "open (mode drain)" in text_of(render(degraded_node()))
    simulated = msgspec.structs.replace(failed_node(), simulated=True)
    assert "none: a simulated node closes no gate" in text_of(render(simulated))


def test_prologs_and_the_writer_to_slurm_are_told() -> None:
    """How often jobs were let in, what SLURM says of the node, and a drain that is due and was not written."""
    node = gpu_node()
    writer = WriterStatus(
        writer="drain",
        node="n42",
        states=("IDLE", "DRAIN"),
        drained_by="other",
        wanted="nodevet: link.down",
        doing="a person drained the node",
        trouble="scontrol took 10 s",
    )
    agent = msgspec.structs.replace(node.agent, gate_decisions={"open": 3, "closed": 0}, jobs=2, slurm=writer)
    page = text_of(render(msgspec.structs.replace(node, agent=agent)))
    for words in (
        "Prolog decisionsopen 3",
        "Jobs with a claim2",
        "SLURM, mode drainn42 is IDLE DRAIN, drained by other; a person drained the node; drain pending: ",
        "scontrol took 10 s",
    ):
        assert words in page, words
    assert "SLURM" not in render(node)


def test_events_are_counted_newest_first() -> None:
    """Also those of an application, which are no fault of the node."""
    events = tuple(
        EventCount(code=code, device=device, fault_class=fault, count=count, last=at(ago))
        for code, device, fault, count, ago in (
            ("nvidia.xid.31", gpu_id(4), FaultClass.APPLICATION, 12, 90.0),
            ("pcie.correctable", NODE, FaultClass.HARDWARE, 1, 30.0),
        )
    )
    rows = rows_of(render(gpu_node(events=events)), "events-name")
    assert rows == [
        ["pcie.correctable", "the node", "hardware", "1", "30 s ago"],
        ["nvidia.xid.31", "GPU 4", "application", "12", "90 s ago"],
    ]


def test_hostile_names_are_shown_as_text() -> None:
    """Quotes, tags, controls, half letters and signs that turn writing around do nothing and break nothing."""
    page = render(NODES["hostile"]())
    assert "<script" not in page
    assert not re.search("[\x00\x1b\u202e]", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert f"{EVIL[:5]}" in text_of(page)


def test_a_page_stays_small_whatever_is_found() -> None:
    """Ten thousand findings with endless messages, and hundreds of devices: cut, counted, the rest named."""
    findings = tuple(
        Finding(
            check="links",
            code=f"link.down.{n % 400}",
            outcome=Outcome.FAIL,
            message="x" * 5000,
            device=gpu_id(n % 8),
            part=Part(PartKind.LINK, index=n),
            limit=Limit(">=", 1, "count", "y" * 5000),
        )
        for n in range(10_000)
    )
    devices = tuple(gpu(index % 8, id=f"GPU-{index}", minor=index) for index in range(500))
    page = render(gpu_node(findings=findings, devices=devices))
    assert len(page) < 600_000
    assert "and 9,940 more" in text_of(page)
    assert "and 436 devices more" in text_of(page)
    assert len(classes(parsed(page), "card")) == 65
    assert "x" * (LONGEST_TEXT + 1) not in page


def test_a_page_is_made_once_per_judgement() -> None:
    """The same Snapshot is the same page but for its age; another Snapshot is another."""
    moments = iter((at(-3), at(-9), at(-9)))
    page, snapshot = StatusPage(lambda: next(moments)), gpu_node()
    first = page.render(snapshot).decode()
    snapshot.device_verdicts.clear()  # what a page that is recreated would show
    second = page.render(snapshot).decode()
    assert "(3 s ago)" in first
    assert second == first.replace("(3 s ago)", "(9 s ago)")
    assert page.render(msgspec.structs.replace(snapshot, generation=43)).decode() != second


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """The page over HTTP."""
    running = HttpServer("127.0.0.1:0", gpu_node, lambda: None, now=at)
    running.start()
    yield running
    running.stop()


def headers(server: HttpServer, path: str) -> tuple[dict[str, str], str]:
    """Return headers and body of the answer at *path*."""
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def test_the_page_may_use_its_own_style_and_nothing_else(server: HttpServer) -> None:
    """The policy names the digest of the one style, and no source besides."""
    said, page = headers(server, "/")
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert said["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_the_page_refreshes_itself_unless_it_is_held(server: HttpServer) -> None:
    """Every round of the agent; a reader who needs time stops it, and the page says which it is."""
    moving, page = headers(server, "/")
    held, still = headers(server, "/?refresh=off")
    assert moving["Refresh"] == "10"
    assert "refreshes itself every 10 s" in page
    assert "Refresh" not in held
    assert "does not refresh itself" in still
    assert "Refresh" not in headers(server, "/metrics")[0]


def test_every_colour_can_be_read(page: str) -> None:
    """Words reach a contrast of 4.5 to 1 on every ground they stand on, in both schemes."""
    (light, dark) = re.findall(r":root \{(.*?)\}", page, flags=re.S)[:2]
    for scheme in (light, dark):
        colours = {**_colours(light), **_colours(scheme)}
        for ink in ("ink", "soft", "ok", "degraded", "failed", "unknown"):
            for ground in ("paper", "ground"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        assert _contrast(colours["on-fault"], colours["failed"]) >= 4.5


def _colours(block: str) -> dict[str, str]:
    return {
        name: value if len(value) == 6 else "".join(c * 2 for c in value)
        for name, value in re.findall(r"--([\w-]+): #(\w+);", block)
    }


def _contrast(first: str, second: str) -> float:
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
