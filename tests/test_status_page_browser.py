"""The status page in a real browser: it loads nothing else, complains of nothing, and fits a phone and a desk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.chromium import served, visit
from fakes.page_nodes import NODES
from fakes.picture import picture_size, shrink
from fakes.running_agent import RunningAgent
from fakes.snapshots import at

from nodevet.exporters.web.http import HttpServer
from nodevet.exporters.web.page.render import StatusPage

PAGES = ("ok", "degraded", "failed", "unknown", "simulated", "starting", "stale")


class Shown(msgspec.Struct, frozen=True):
    """A page that a real server serves."""

    name: str
    url: str


@pytest.fixture(params=PAGES)
def shown(request: pytest.FixtureRequest) -> Iterator[Shown]:
    """A server for each page that a person may meet; a stale one was judged ten minutes ago."""
    name = request.param
    snapshot = NODES["ok" if name == "stale" else name]()
    server = HttpServer("127.0.0.1:0", lambda: snapshot, lambda: None, now=lambda: at(-600 if name == "stale" else -3))
    server.start()
    yield Shown(name, server.url)
    server.stop()


def test_a_browser_shows_it_without_scripts_and_asks_for_nothing_else(shown: Shown, tmp_path: Path) -> None:
    """Verdict and devices stand in the document; no request of the page's own, no word on the console."""
    seen = visit(shown.url, tmp_path, scripts=False)
    verdict = {"simulated": "degraded", "starting": "unknown", "stale": "unknown"}.get(shown.name, shown.name)
    assert re.findall(r'id="verdict">(\w+)<', seen.document) == [verdict]
    assert "GPU 7" in seen.document
    assert "NVIDIA H100 80GB HBM3" in seen.document
    assert ("Simulated node." in seen.document) is (shown.name == "simulated")
    assert seen.requested == ()
    assert seen.console == ()


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)], ids=["phone, dark", "desk, light"])
def test_a_browser_paints_it(shown: Shown, tmp_path: Path, width: int, dark: bool) -> None:
    """A phone in the dark and a desk by day; the pictures stay in the test's directory, to be looked at."""
    picture = tmp_path / f"{shown.name}-{width}-{'dark' if dark else 'light'}.png"
    seen = visit(shown.url, tmp_path, width=width, height=1200, dark=dark, picture=picture)
    assert picture_size(picture) == (width, 1200)
    assert picture.stat().st_size > 20_000
    assert (seen.requested, seen.console) == ((), ())


FRAMES = """<!doctype html><title>not measured</title>{frames}
<script>
onload = () => {{
  document.title = Array.from(frames, (frame) => frame.document.documentElement.scrollWidth).join(" ")
}}
</script>"""
"""No window is as narrow as a phone, a frame in it is."""


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_sticks_out(width: int, tmp_path: Path) -> None:
    """No page of any node scrolls sideways on a phone or a tablet; only wide tables do, within their frames."""
    pages = {f"/{place}": _page(name) for place, name in enumerate(NODES)}
    frames = "".join(f'<iframe src="{path}" width="{width}" height="300"></iframe>' for path in pages)
    with served({"/": FRAMES.format(frames=frames), **pages}) as address:
        seen = visit(f"{address}/", tmp_path)
    (title,) = re.findall(r"<title>(.*?)</title>", seen.document)
    assert dict(zip(NODES, title.split(), strict=True)) == dict.fromkeys(NODES, str(width))


def _page(name: str) -> str:
    return StatusPage(lambda: at(-3)).render(NODES[name]()).decode()


PICTURE_SIZE = (1400, 2095)
PICTURE_SCENARIO = """
title = "a link fails under load"

[[load]]
level = 0.9
at = "0s"

[[fault]]
kind = "link_down"
device = 1
link = 4
at = "12s"
"""


def test_the_picture_of_the_readme_is_one_of_this_page(
    request: pytest.FixtureRequest, repository: Path, tmp_path: Path
) -> None:
    """A simulated node with a fault, seen by a real browser; --update-golden takes it anew."""
    picture = repository / "docs" / "images" / "status-page.png"
    if request.config.getoption("--update-golden"):
        _take_picture(picture, tmp_path)
    assert picture_size(picture) == PICTURE_SIZE
    assert 30_000 < picture.stat().st_size < 200_000


def _take_picture(picture: Path, directory: Path) -> None:
    scenario = directory / "scenario.toml"
    scenario.write_text(PICTURE_SCENARIO)
    arguments = ("--simulate", "dgx-h100", "--scenario", str(scenario), "--node-name", "gpu-n17")
    picture.parent.mkdir(exist_ok=True)
    with RunningAgent(directory, arguments=arguments) as agent:
        agent.wait_for_finding("nvidia.xid.74", 60)
        visit(f"{agent.url}/", directory, width=PICTURE_SIZE[0], height=PICTURE_SIZE[1], picture=picture)
    shrink(picture)


def test_the_browser_would_tell(tmp_path: Path) -> None:
    """What the tests above rest on: a page that loads from elsewhere and complains is found out."""
    page = (
        "<!doctype html><title>x</title><link rel=stylesheet href='http://other.example/a.css'>"
        "<script>console.error('boom'); document.title = 'ran'</script>"
    )
    with served({"/": page}) as address:
        seen = visit(f"{address}/", tmp_path)
        without = visit(f"{address}/", tmp_path, scripts=False)
    assert "http://other.example/a.css" in seen.requested
    assert seen.console == ("boom",)
    assert "<title>ran</title>" in seen.document
    assert "<title>x</title>" in without.document
