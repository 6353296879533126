"""Templates: nothing loads jinja2 before an HTML page is asked for, and without it that page alone is missing."""

from __future__ import annotations

import ast
import http.client
import importlib.abc
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from fakes.house import Module, modules, parsed, within
from fakes.page_nodes import NODES
from fakes.poison import POISON, poisoned
from fakes.reports import from_snapshot
from fakes.running_agent import RunningAgent
from fakes.snapshots import at, gpu_id, gpu_node

from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import Snapshot
from nodevet.exporters.documents.types import SeriesDocument
from nodevet.exporters.report.render import render
from nodevet.exporters.templates import PageError, Templates, Verbatim
from nodevet.exporters.web.http import PAGES, HttpServer
from nodevet.exporters.web.page import render as page_module
from nodevet.exporters.web.page.render import StatusPage

LIBRARIES = ("jinja2", "markupsafe")
PATIENCE_SECONDS = 30.0
FOLDERS = (Path(page_module.__file__).parent, Path(page_module.__file__).parents[2] / "report")
TEMPLATES = sorted(path for folder in FOLDERS for path in folder.glob("*.html"))


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    """Return the status and the body of *path*."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


EVERY_MODULE_AND_THE_FIRST_PAGE = """
import http.client, importlib, pkgutil, sys
import nodevet.agent, nodevet.checks, nodevet.exporters
from fakes.snapshots import at, gpu_node

LIBRARIES = ("jinja2", "markupsafe")
def loaded():
    return [name for name in LIBRARIES if name in sys.modules]

for package in (nodevet.agent, nodevet.checks, nodevet.exporters):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith("nodevet.checks.burnin"):
            importlib.import_module(found.name)
print("imports", loaded())

from nodevet.exporters.web.http import PAGES, HttpServer
server = HttpServer("127.0.0.1:0", gpu_node, lambda: None, now=at)
server.start()
for path in (*PAGES[1:], PAGES[0]):
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request("GET", path)
    connection.getresponse().read()
    print(path, loaded())
server.stop()
"""


def test_the_first_status_page_loads_jinja2_and_nothing_before_does(repository: Path) -> None:
    """Neither importing any module but those of loads, which have torch, nor any other path of the server."""
    code = f"import sys; sys.path.insert(0, {str(repository / 'tests')!r})\n{EVERY_MODULE_AND_THE_FIRST_PAGE}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    quiet = ["imports", *PAGES[1:]]
    assert done.stdout.splitlines() == [*(f"{name} []" for name in quiet), f"/ {list(LIBRARIES)}"]


def test_the_daemon_maps_no_template_engine_before_it_is_asked_for_a_page(tmp_path: Path) -> None:
    """The compiled part of markupsafe is in the agent's memory after the first page, and in no reader's ever."""

    def mapped(process: psutil.Process) -> bool:
        return "markupsafe" in Path(f"/proc/{process.pid}/maps").read_text()

    with RunningAgent(tmp_path, arguments=("--simulate", "dgx-h100")) as agent:
        agent.wait_for(lambda status: status["verdict"] == "ok")
        assert agent.process is not None
        daemon = psutil.Process(agent.process.pid)
        readers = daemon.children()
        assert readers
        agent.get("/metrics")
        assert [mapped(process) for process in (daemon, *readers)] == [False] * (1 + len(readers))
        assert 'id="verdict">ok<' in agent.get("/")
        assert mapped(daemon)
        agent.wait_for(lambda status: status["verdict"] == "ok")
        assert not any(map(mapped, daemon.children()))


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """A server that has made no page yet."""
    running = HttpServer("127.0.0.1:0", gpu_node, lambda: None, now=at)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Modules of the libraries are imported anew."""
    for name in [name for name in sys.modules if name.split(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, name)
    return monkeypatch


DAMAGES: dict[str, Callable[[Path], object]] = {
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
    "empty": Path.touch,
    "cut": lambda path: path.write_text("def __getattr__(na"),
    "another": lambda path: path.write_text("from string import no_such_name"),
    "absent": lambda path: path.write_text("raise ModuleNotFoundError('No module named jinja2')"),
}
"""What may have become of jinja2/__init__.py."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_jinja2_the_status_page_alone_is_missing(
    server: HttpServer, without_libraries: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    """A 503 in plain words; scrapers and programs are answered, and once it is repaired so is the person."""
    (tmp_path / "jinja2").mkdir()
    DAMAGES[damage](tmp_path / "jinja2" / "__init__.py")
    with without_libraries.context() as broken:
        broken.syspath_prepend(str(tmp_path))
        for _ in range(2):
            status, body = get(server.address, "/")
            assert status == 503
            assert body.startswith("an HTML page needs jinja2, which cannot be imported (")
            assert body.endswith("): correct that, or install it anew; /metrics and /api/v1/status answer\n")
            assert body.count("\n") == 1
        assert [get(server.address, path)[0] for path in PAGES[1:]] == [200, 200, 404, 200, 200]
    for name in [name for name in sys.modules if name.split(".")[0] in LIBRARIES]:
        del sys.modules[name]
    assert get(server.address, "/")[0] == 200


class _Waits(importlib.abc.MetaPathFinder):
    """Finds jinja2 when it is told to, as on a disk that stands still."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Wait, and leave the search to the others."""
        if name == "jinja2":
            self.asked.set()
            assert self.answers.wait(PATIENCE_SECONDS)


def test_of_those_who_ask_for_the_page_one_waits_for_the_import(without_libraries: pytest.MonkeyPatch) -> None:
    """Any local user may ask: each would hold a thread for as long as the disk of the installation stands still."""
    waits, page = _Waits(), StatusPage(lambda: at(-3))
    without_libraries.setattr(sys, "meta_path", [waits, *sys.meta_path])
    without_libraries.setattr(page_module, "PATIENCE_SECONDS", 0.05)
    made: list[bytes] = []
    first = threading.Thread(target=lambda: made.append(page.render(gpu_node())))
    first.start()
    try:
        assert waits.asked.wait(PATIENCE_SECONDS)
        began = time.monotonic()
        with pytest.raises(BusyError, match=r"was not rendered within 0\.05 s"):
            page.render(gpu_node())
        assert time.monotonic() - began < 2.0
    finally:
        waits.answers.set()
        first.join(PATIENCE_SECONDS)
    assert b'id="verdict">ok<' in made[0]


class Markup(HTMLParser):
    """Every tag of a page with the names of its attributes, and whether each is closed."""

    def __init__(self, text: str) -> None:
        """Read *text*."""
        super().__init__()
        self.kinds: set[tuple[str, ...]] = set()
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.kinds |= {(tag, *(name for name, _ in attrs))}
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self.kinds |= {(tag, *(name for name, _ in attrs))}

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag, which must be of this name."""
        assert self.open.pop() == tag


def status_page(snapshot: Snapshot) -> str:
    """Return the status page, with all that a page may have."""
    return StatusPage(lambda: at(-3)).render(snapshot, report=True, complaint=snapshot.node).decode()


def report(snapshot: Snapshot) -> str:
    """Return the report, with a curve of each device and of one that is not known."""
    names = [*(device.id for device in snapshot.devices[:2]), snapshot.node]
    series = [SeriesDocument(name, "tflops", ((0.0, 1.0), (60.0, 2.0)), name) for name in names]
    page = render(from_snapshot(snapshot, plan=snapshot.node, series=series))
    page.encode()
    return page


PAGE_MAKERS = {"status page": status_page, "report": report}


@pytest.fixture(scope="module")
def harmless() -> dict[str, set[tuple[str, ...]]]:
    """What the templates themselves write: every kind of tag on the pages of nodes without ill will."""
    nodes = [build() for name, build in NODES.items() if name != "hostile"]
    return {name: set().union(*(Markup(make(node)).kinds for node in nodes)) for name, make in PAGE_MAKERS.items()}


@pytest.mark.parametrize("everything", [False, True], ids=["what others choose", "everything"])
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", PAGE_MAKERS)
def test_no_text_of_a_snapshot_becomes_markup(
    kind: str, node: str, everything: bool, harmless: dict[str, set[tuple[str, ...]]]
) -> None:
    """Tags, quotes, controls, half letters and templates in any text are shown, on every page of every node."""
    snapshot = poisoned(NODES[node](), everything=everything)
    page = PAGE_MAKERS[kind](snapshot)
    read = Markup(page)
    assert read.open == []
    assert read.kinds - harmless[kind] == set()
    assert not re.search("[\x00\x1b\u202e\ud800]", page)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 5
    assert "&amp;amp;{{ 7 * 7 }}{% raw %}\ufffd" in page


def test_the_poison_is_in_what_a_device_is_called() -> None:
    """What the test above rests on."""
    device = next(device for device in poisoned(gpu_node(), everything=False).devices if device.minor == 0)
    assert (device.id, device.model) == (gpu_id(0) + POISON, "NVIDIA H100 80GB HBM3" + POISON)
    assert gpu_id(0) + POISON in poisoned(gpu_node(), everything=True).device_verdicts


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_template_escapes_all_and_quotes_each_attribute(path: Path) -> None:
    """A value without quotes could begin an attribute; nothing declares a value to be markup."""
    text = path.read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup", text)
    assert not re.search(r"=\s*\{[{%]", re.sub(r"\{%.*?%\}", "", text))


def writes_markup(module: Module) -> list[int]:
    """Return the lines of *module* that hold markup: it stands in templates."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"</?[a-z]\w*[ >/]", node.value)
    ]


def test_markup_stands_in_templates(repository: Path) -> None:
    """And the rule finds what would not."""
    rooms = ("exporters.report", "exporters.web.page", "exporters.templates")
    found = [module for module in modules(repository) if any(within(module.name, room) for room in rooms)]
    assert len(found) > 10
    assert {module.name: writes_markup(module) for module in found if writes_markup(module)} == {}
    assert writes_markup(parsed("exporters.report.x", "x = f'<b>{y}</b>'")) == [1, 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a template that shows a value."""
    (tmp_path / "page.html").write_text('<p title="{{ value }}">{{ value }}</p>')
    return tmp_path


def test_a_text_is_cut_cleaned_and_escaped(folder: Path) -> None:
    """In this order, so that neither half an escape nor a sign that is none is left; our own markup stays."""
    templates = Templates(folder, longest_text=3)
    assert templates.render("page.html", value="<b>1") == '<p title="&lt;b&gt;…">&lt;b&gt;…</p>'
    assert templates.render("page.html", value="\ud800\u202e") == '<p title="\ufffd\ufffd">\ufffd\ufffd</p>'
    assert templates.render("page.html", value=Verbatim("a\0b&c")) == '<p title="a\0b&c">a\0b&c</p>'
    assert Templates(folder).render("page.html", value=12345) == '<p title="12345">12345</p>'


def test_a_value_that_is_missing_is_an_error(folder: Path) -> None:
    """A name that was misspelled is never an empty place on the page."""
    with pytest.raises(Exception, match="'value' is undefined"):
        Templates(folder).render("page.html", valeu="x")


def test_what_cannot_be_imported_is_said_in_one_line(folder: Path, without_libraries: pytest.MonkeyPatch) -> None:
    """And the next page tries again."""
    templates = Templates(folder)
    with without_libraries.context() as broken:
        broken.setitem(sys.modules, "jinja2", None)
        with pytest.raises(PageError, match=r"^an HTML page needs jinja2, .*: correct that, or install it anew$"):
            templates.render("page.html", value="x")
    assert "x" in templates.render("page.html", value="x")
