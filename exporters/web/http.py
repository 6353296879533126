"""The HTTP server: metrics, public JSON, health of the agent and a small status page. Read-only.

Each response has a thread and a deadline, and few run at a time: a client that stalls does not block the server. The
server does not block the agent, because a request reads only the last Snapshot. The accepting thread collects the
requests; while responses use all connections, new ones wait in the kernel's queue, in order. On a loopback address, the
server responds only to the names of loopback, so that no web page can make a browser read the node through a name of
its own.
"""

from __future__ import annotations

import io
import ipaddress
import select
import selectors
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError, ConfigurationError
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import Instant, Snapshot
from nodevet.checks.system.addresses import parse_listen
from nodevet.checks.system.background import Background
from nodevet.checks.system.exhaustion import EXHAUSTED, EXHAUSTED_SECONDS
from nodevet.exporters.documents.schema import encode, status_document
from nodevet.exporters.metrics.prometheus import CONTENT_TYPE_OPENMETRICS, CONTENT_TYPE_TEXT, MetricsPage
from nodevet.exporters.templates import PageError

from .arrivals import Arrivals, Request
from .connections import CONNECTION_SECONDS, Connections
from .departures import Departure
from .listen_address import family, is_loopback, names_loopback, refusal, with_zone
from .page.render import StatusPage

LOOK_SECONDS = 0.25
"""Interval (s) of checks for connections past their deadline, while any is open."""

QUEUED_CONNECTIONS = 1024
"""Length of the kernel's queue while responses use all connections: a client needs as many connections to fill it."""

STOP_SECONDS = 0.5
"""Time (s) that the stop waits for the accepting thread, which may be blocked itself, such as for memory."""

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"
_HTML = "text/html; charset=utf-8"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STILL = "refresh=off"
_DETAIL = "detail=yes"

PAGES = ("/", "/metrics", "/api/v1/status", "/report", "/-/healthy", "/-/ready")

SnapshotSource = Callable[[], Snapshot | None]
Complaint = Callable[[], str | None]
ReportSource = Callable[[], bytes | None]


class HttpServer:
    """Serves the newest Snapshot on one address, in threads of its own.

    ``snapshot`` returns the newest Snapshot, or None before the first; ``complaint`` returns why the agent's main loop
    makes no progress, or None; ``report`` returns the newest report page, or None; ``reported`` returns whether there
    is one, without access to the disk (default: by reading it); ``now`` is the clock for the age of a judgement
    (default: the machine's); ``log`` takes a line about a failed request.
    """

    def __init__(
        self,
        listen: str,
        snapshot: SnapshotSource,
        complaint: Complaint,
        *,
        page: MetricsPage | None = None,
        report: ReportSource = lambda: None,
        reported: Callable[[], bool] | None = None,
        now: Callable[[], Instant] | None = None,
        log: Callable[[str], None] | None = None,
        guard: Guard | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Bind to *listen*. Raises UsageError, BusyError (port in use) or ConfigurationError (not permitted)."""
        host, port = parse_listen(listen)
        try:
            status = StatusPage(now or SystemClock().instant)
            guard = guard or (Guard(log) if log else Guard())
            site = _Site(snapshot, complaint, page, status, report, host, guard)
            site.reported = reported or site.reported
            self._server = _Server((host, port), site, log, connections or Connections())
        except OSError as error:
            raise refusal(error, host, port) from error
        except TypeError as error:  # a NUL byte, or letters that are invalid in a host name
            raise ConfigurationError(f"cannot listen on {host}:{port}: {host} is not a host name") from error
        self._stopped = False
        self._thread = Background(self._server.serve)

    @property
    def address(self) -> tuple[str, int]:
        """Return the bound host and port; for port 0, the port that the kernel chose."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Return the URL of the status page for a browser on this machine."""
        host, port = self.address
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    @property
    def refused(self) -> int:
        """Return the number of connections that were closed without a response."""
        return self._server.connections.refused

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving, close every connection and free the port, within 0.5 s."""
        if self._stopped:
            return
        self._stopped = True
        self._server.wake()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._server.connections.end_all()
        self._server.server_close()


class _Site:
    """The response to each path. ``local_only`` is set if only the names of loopback may be requested."""

    def __init__(
        self,
        snapshot: SnapshotSource,
        complaint: Complaint,
        page: MetricsPage | None,
        status: StatusPage,
        report: ReportSource,
        host: str,
        guard: Guard,
    ) -> None:
        self.snapshot = snapshot
        self.status = status
        self.report = report
        self.reported: Callable[[], bool] = lambda: report() is not None
        self.complaint = complaint
        self.page = page or MetricsPage(guard=guard)
        self.detailed = MetricsPage(detail=True, guard=guard)
        self.document = _StatusJson()
        self.local_only = is_loopback(host)
        self.guard = guard

    def safe_answer(self, path: str, query: str, accept: str, accept_encoding: str) -> _Answer:
        """Return the response; an exception fails this response only, and its finding names the page."""
        page = path if path in PAGES else "unknown"
        return self.guard.run(
            f"page {page}",
            partial(self.answer, path, query, accept, accept_encoding),
            lambda: _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in nodevet: read the agent's log"),
        )

    def answer(self, path: str, query: str, accept: str, accept_encoding: str) -> _Answer:
        match path:
            case "/-/healthy":
                complaint = self.complaint()
                return _plain(HTTPStatus.SERVICE_UNAVAILABLE, complaint) if complaint else _plain(HTTPStatus.OK, "ok")
            case "/report":
                return self._report()
            case "/-/ready" | "/metrics" | "/api/v1/status" | "/":
                snapshot = self.snapshot()
            case _:
                return _plain(HTTPStatus.NOT_FOUND, "no such page: / links to all pages")
        if snapshot is None:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "starting: the node was not judged yet")
        if path == "/metrics":
            page = self.detailed if query == _DETAIL else self.page
            return self._metrics(page, snapshot, accept, accept_encoding)
        if path == "/api/v1/status":
            return _Answer(HTTPStatus.OK, _JSON, self.document.encoded(snapshot))
        if path == "/":
            return self._status_page(snapshot, still=query == _STILL)
        if not snapshot.agent.ready or snapshot.agent.stopping:
            what = "stopping" if snapshot.agent.stopping else "starting: the first round is not complete"
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, what)
        return _plain(HTTPStatus.OK, "ready")

    def _status_page(self, snapshot: Snapshot, *, still: bool) -> _Answer:
        try:
            body = self.status.render(snapshot, complaint=self.complaint(), report=self.reported(), still=still)
        except (PageError, BusyError) as error:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; /metrics and /api/v1/status answer")
        return _Answer(HTTPStatus.OK, _HTML, body, headers=self.status.headers(snapshot, still=still))

    def _report(self) -> _Answer:
        try:
            page = self.report()
        except BusyError as error:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND, "no report yet: the first load writes it")
        return _Answer(HTTPStatus.OK, _HTML, page)

    def _metrics(self, page: MetricsPage, snapshot: Snapshot, accept: str, accept_encoding: str) -> _Answer:
        wanted = _quality(accept, "application/openmetrics-text")
        openmetrics = wanted > 0 and wanted >= _quality(accept, "text/plain")
        compressed = _quality(accept_encoding, "gzip") > 0
        body = page.render(snapshot, openmetrics, compressed=compressed)
        kind = CONTENT_TYPE_OPENMETRICS if openmetrics else CONTENT_TYPE_TEXT
        return _Answer(HTTPStatus.OK, kind, body, encoding="gzip" if compressed else None)


class _StatusJson:
    """Encodes the status once per Snapshot and returns the same bytes until the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[Snapshot, bytes] | None = None

    def encoded(self, snapshot: Snapshot) -> bytes:
        with self._lock:
            if self._newest is None or self._newest[0] is not snapshot:
                self._newest = (snapshot, encode(status_document(snapshot)))
            return self._newest[1]


class _Answer(msgspec.Struct, frozen=True):
    status: HTTPStatus
    kind: str
    body: bytes
    encoding: str | None = None
    headers: Mapping[str, str] = {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = QUEUED_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], site: _Site, log: Callable[[str], None] | None, connections: Connections
    ) -> None:
        self.address_family = family(address[0])
        self.site = site
        self.connections = connections
        self._log = log
        self._exhausted_until = 0.0
        self._selector = selectors.DefaultSelector()
        self._arrivals = Arrivals(self._selector)
        self._requests: dict[socket.socket, Request] = {}
        self._listens = False
        self._is_over = False
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        try:
            super().__init__(address, _Handler)
        except OSError:
            self._close_wakers()
            raise
        self.socket.setblocking(False)

    def serve(self) -> None:
        """Serve until woken. Without requests nothing runs: the loop sleeps while no connection is open."""
        self._selector.register(self._woken, selectors.EVENT_READ)
        while not self._is_over:
            self._listen_while_there_is_room()
            waits = self.connections.any or not self._listens
            ready = {key.fileobj for key, _ in self._selector.select(LOOK_SECONDS if waits else None)}
            if self._woken in ready:
                self._woken.recv(1 << 12)
            for connection in ready - {self._woken, self.socket}:
                self._receive(connection)
            if self.socket in ready and self.connections.has_room:
                self._accept()
            self.connections.end_overdue()
        for connection in self._arrivals.forget_all():
            self.shutdown_request(connection)

    def _listen_while_there_is_room(self) -> None:
        """Accept no connection while responses use all of them: the kernel queues new ones, in order."""
        has_room = self.connections.has_room
        if has_room == self._listens:
            return
        self._listens = has_room
        if has_room:
            self._selector.register(self.socket, selectors.EVENT_READ)
            return
        self._selector.unregister(self.socket)
        if self.connections.has_room:
            self._ring()  # a place became free before other threads saw that it is awaited

    def _receive(self, connection: Any) -> None:
        """Read from *connection*; once its request is complete, start a thread for the response.

        ``Thread.start`` is not used: it waits for the first step of the thread, for ever if that fails for lack of
        memory.
        """
        try:
            request = self._arrivals.take(connection)
            if request is None:
                return
            if not request.data or not self.connections.complete(connection):
                self.shutdown_request(connection)
                return
            self._requests[connection] = request
            start_new_thread(self.process_request_thread, (connection, None))
        except (OSError, RuntimeError, MemoryError):  # no thread or memory is available
            self._arrivals.forget(connection)
            self.handle_error(connection, None)
            self.shutdown_request(connection)

    def received(self, connection: socket.socket) -> Request:
        """Return the request of *connection*."""
        return self._requests[connection]

    def waits(self, connection: socket.socket) -> None:
        """Note that the client of *connection* does not read its response; wake the loop if it awaits a free place."""
        self.connections.waits(connection)
        if not self._listens:
            self._ring()

    def _accept(self) -> None:
        """Accept the next connection. Without a free descriptor, wait: the kernel queues it, and others end."""
        wait = self._exhausted_until - time.monotonic()
        if wait > 0 and self._is_woken(min(wait, LOOK_SECONDS)):
            return
        self.handle_request()

    def _is_woken(self, patience_seconds: float) -> bool:
        """Wait for the stop. By poll(2): select(2) takes no descriptor above 1023, and many may be inherited."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        return bool(poll.poll(patience_seconds * 1000))

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if descriptors or memory are exhausted, accept none for a while and log it once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                now = time.monotonic()
                if self._log is not None and now > self._exhausted_until + EXHAUSTED_SECONDS:
                    words = f"http: no connection can be accepted: {error.strerror}"
                    self._log(f"{words}: raise LimitNOFILE of the unit, or free memory")
                self._exhausted_until = now + EXHAUSTED_SECONDS
            raise

    def wake(self) -> None:
        """End ``serve``."""
        self._is_over = True
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # its buffer is full, so that the loop wakes anyway, or the server is closed
            self._waker.send(b"x")

    def server_close(self) -> None:
        """Close the port."""
        super().server_close()
        self._close_wakers()

    def _close_wakers(self) -> None:
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def server_bind(self) -> None:
        """Bind without the reverse name lookup of the base class, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by each connection: the kernel resets it once the client has all of the response (tcp(7)), even if
        # the client never closes it. Else it would hold one of some 28,000 ports, until a scraper finds none.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, -1)
        asked = str(self.server_address[0])
        self.socket.bind(with_zone(asked, self.server_address[1]))
        bound = self.socket.getsockname()
        self.server_address = (asked if "%" in asked else bound[0], bound[1])
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Admit a connection, in place of another if too many are open."""
        return self.connections.admit(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for the request of an admitted connection."""
        self._arrivals.expect(request)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ends; wake the loop if it awaits a free place."""
        self._requests.pop(request, None)
        self.connections.forget(request)
        super().shutdown_request(request)
        if not self._listens:
            self._ring()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the exception of a request in one line, never as a traceback on standard error."""
        error = sys.exc_info()[1]
        if self._log is not None and not isinstance(error, ConnectionError | TimeoutError):
            self._log(f"http: request failed: {type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - no other server uses it
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Set up the streams; a client that reads nothing for CONNECTION_SECONDS is given up."""
        super().setup()
        self.connection.settimeout(CONNECTION_SECONDS)
        request = self.server.received(self.connection)
        self.rfile = io.BytesIO(request.data)
        self.wfile = Departure(self.connection, partial(self.server.waits, self.connection))
        self._is_whole = request.whole

    def do_GET(self) -> None:
        """Respond with a page."""
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        """Respond with the headers of a page."""
        self._respond(with_body=False)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject an invalid request; for an unsupported method, name the supported ones."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._send(_plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing here can be changed"))
        else:
            self._send(_plain(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape every few seconds is not worth a line."""

    def send_response(self, code: int, message: str | None = None) -> None:
        """Send the status line without the name and version of server and interpreter."""
        self.send_response_only(code, message)
        self.send_header("Date", self.date_time_string())

    def _respond(self, *, with_body: bool) -> None:
        if not self._is_whole:
            self.send_error(HTTPStatus.BAD_REQUEST, "the request is cut off, or too long")
            return
        site = self.server.site
        if site.local_only and not names_loopback(self.headers.get("Host")):
            self._send(
                _plain(HTTPStatus.MISDIRECTED_REQUEST, "this address answers to localhost only: use 127.0.0.1"),
                with_body=with_body,
            )
            return
        path, _, query = self.path.partition("?")
        accept, encoding = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
        self._send(site.safe_answer(path, query, accept, encoding), with_body=with_body)

    def _send(self, answer: _Answer, *, with_body: bool = True) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in {"Content-Security-Policy": _POLICY, **answer.headers}.items():
            self.send_header(name, value)
        if answer.encoding:
            self.send_header("Content-Encoding", answer.encoding)
        if answer.kind in (CONTENT_TYPE_TEXT, CONTENT_TYPE_OPENMETRICS):
            self.send_header("Vary", "Accept, Accept-Encoding")
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)


def _plain(status: HTTPStatus, line: str) -> _Answer:
    return _Answer(status, _TEXT, f"{line}\n".encode())


def _quality(header: str, wanted: str) -> float:
    """Return the quality of *wanted* in an Accept header, from 0 (not acceptable) to 1. Versions are ignored."""
    qualities = [0.0]
    for entry in header.split(","):
        name, *parameters = (word.strip().lower() for word in entry.split(";"))
        if name == wanted:
            weights = [parameter.removeprefix("q=") for parameter in parameters if parameter.startswith("q=")]
            qualities.append(_weight(weights[0]) if weights else 1.0)
    return max(qualities)


def _weight(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 1.0
