"""A real browser without a window: what a page asks for, what it shows, and what it complains about."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

__all__ = ["Visit", "served", "visit"]

VISIT_SECONDS = 60.0
CONSOLE = re.compile(r"CONSOLE:?\d*[)\]] \"(.*)\", source", re.M)


class Visit(msgspec.Struct, frozen=True):
    """What came of a page: its document after loading, the addresses it asked for itself, its words on the console."""

    document: str
    requested: tuple[str, ...]
    console: tuple[str, ...]


def visit(
    url: str,
    directory: Path,
    *,
    width: int = 1400,
    height: int = 1000,
    dark: bool = False,
    scripts: bool = True,
    picture: Path | None = None,
) -> Visit:
    """Open *url* in a fresh profile below *directory*; no name but 127.0.0.1 resolves. *picture* takes a PNG."""
    log = directory / "net.json"
    preferences = directory / "profile" / "Default" / "Preferences"
    preferences.parent.mkdir(parents=True, exist_ok=True)
    preferences.write_text(
        json.dumps({"profile": {"default_content_setting_values": {"javascript": 1 if scripts else 2}}})
    )
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-breakpad",
        f"--user-data-dir={directory / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--enable-logging=stderr", f"--blink-settings=preferredColorScheme={int(not dark)}",
        f"--window-size={width},{height}", f"--log-net-log={log}",
        f"--screenshot={picture}" if picture else "--dump-dom", url,
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(directory)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=directory, timeout=VISIT_SECONDS, check=True
    )
    return Visit(done.stdout, tuple(_requested(log, url)), tuple(CONSOLE.findall(done.stderr)))


@contextmanager
def served(pages: Mapping[str, str]) -> Iterator[str]:
    """Serve *pages* by path from a free port of 127.0.0.1, and give its address without a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, pages))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _requested(log: Path, url: str) -> Iterator[str]:
    """Yield what the page itself asked for: the browser's own errands have another initiator."""
    told = json.loads(log.read_text())
    starts = told["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    for event in told["events"]:
        if event["type"] == starts and event.get("params", {}).get("initiator") == origin:
            yield event["params"]["url"]


class _Pages(BaseHTTPRequestHandler):
    def __init__(self, pages: Mapping[str, str], *rest: object) -> None:
        self.pages = pages
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with the page of the path."""
        page = self.pages.get(self.path)
        body = (page or "").encode()
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
