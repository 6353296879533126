"""The HTTP surface as a scraper, a browser and a person with curl meet it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from fakes.snapshots import at, failed_node, gpu_node, starting_node
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nodevet.checks.core.errors import BusyError, ConfigurationError
from nodevet.checks.core.model import Device, DeviceKind, Snapshot
from nodevet.checks.system.exhaustion import EXHAUSTED
from nodevet.exporters.documents.schema import encode
from nodevet.exporters.web import http as http_server
from nodevet.exporters.web.connections import MAXIMUM_CONNECTIONS, Connections
from nodevet.exporters.web.http import HttpServer

Start = Callable[..., HttpServer]


class Answer(msgspec.Struct):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers on free ports of loopback; all are stopped at the end."""
    servers: list[HttpServer] = []

    def begin(
        snapshot: Snapshot | None = None,
        complaint: str | None = None,
        listen: str = "127.0.0.1:0",
        **more: Any,
    ) -> HttpServer:
        server = HttpServer(listen, lambda: snapshot, lambda: complaint, now=at, **more)
        servers.append(server)
        server.start()
        return server

    yield begin
    for server in servers:
        server.stop()


def ask(server: HttpServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request and return the answer."""
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def test_metrics_are_served_in_the_format_that_was_asked_for(start: Start) -> None:
    """A plain scrape gets 0.0.4, one that accepts OpenMetrics gets that; both name their type as scrapers require."""
    server = start(gpu_node())
    plain = ask(server, "/metrics")
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert any(family.name == "nodevet_node_state" for family in parse_text(plain.body.decode()))
    accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"
    modern = ask(server, "/metrics", Accept=accept)
    assert modern.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert any(family.name == "nodevet_node_state" for family in parse_openmetrics(modern.body.decode()))  # type: ignore[no-untyped-call]


def test_metrics_are_compressed_for_those_who_accept_it(start: Start) -> None:
    """A scraper that accepts gzip gets the same page in a fraction of the bytes."""
    server = start(gpu_node())
    plain = ask(server, "/metrics").body
    packed = ask(server, "/metrics", Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain
    assert len(packed.body) < len(plain) / 5
    assert "Content-Encoding" not in ask(server, "/metrics", Accept_Encoding="gzip;q=0, identity").headers


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; q=0.5, text/plain; q=0.5", True),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;q=0.00", False),
        ("application/openmetrics-text;q=high", True),
        ("*/*", False),
    ],
)
def test_a_scraper_gets_the_format_that_it_prefers(start: Start, accept: str, openmetrics: bool) -> None:
    """As scrape_protocols of Prometheus orders them; whoever names none gets the older one, which all can read."""
    kind = ask(start(gpu_node()), "/metrics", Accept=accept).headers["Content-Type"]
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text; version=abc", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("application/openmetrics-text; version=2.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (
            "application/openmetrics-text; version=1.0.0; escaping=allow-utf-8",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        ("text/plain; version=1.0.0; escaping=values", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=\u00e4", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_no_version_or_escaping_that_is_asked_for_makes_a_page_of_its_own(start: Start, accept: str, kind: str) -> None:
    """Two formats, plain or gzipped, are all there is to render: no asker makes the agent work more, or fail."""
    server = start(gpu_node())
    plain = ask(server, "/metrics", Accept="application/openmetrics-text" if "openmetrics" in accept else "*/*")
    asked = ask(server, "/metrics", Accept=accept)
    assert (asked.status, asked.headers["Content-Type"]) == (200, kind)
    assert asked.body == plain.body


@pytest.mark.parametrize("path", ["/metrics", "/metrics?detail=yes"])
def test_a_metric_that_cannot_be_made_is_told_and_costs_itself(start: Start, path: str) -> None:
    """On either page of a server: the scrape is answered, and the agent's log names what is left out of it."""
    lines: list[str] = []
    healthy = gpu_node()
    agent = msgspec.structs.replace(healthy.agent, dropped_log_lines=10**400)
    server = start(msgspec.structs.replace(healthy, agent=agent), log=lines.append)
    answer = ask(server, path)
    assert answer.status == 200
    assert b"nodevet_node_state" in answer.body
    assert b"nodevet_log_dropped_lines" not in answer.body
    (line,) = lines
    assert line.startswith("metric nodevet_log_dropped_lines failed: OverflowError: ")


def test_the_status_is_the_public_document(start: Start) -> None:
    """The API says what the schema says."""
    answer = ask(start(failed_node()), "/api/v1/status")
    document = json.loads(answer.body)
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert (document["schema"], document["verdict"], document["action"]) == (
        "nodevet.status/1", "failed", "power_cycle",
    )  # fmt: skip


def test_no_process_leaves_over_http(start: Start) -> None:
    """The pids that hold a device are on no page."""
    server = start(failed_node())
    for path in ("/", "/metrics", "/api/v1/status"):
        assert b"31337" not in ask(server, path).body
        assert b"4242" not in ask(server, path).body


@pytest.mark.parametrize(
    ("complaint", "status", "words"),
    [(None, 200, b"ok\n"), ("main loop made no progress for 31 s", 503, b"main loop made no progress for 31 s\n")],
)
def test_health_is_that_of_the_main_loop(start: Start, complaint: str | None, status: int, words: bytes) -> None:
    """A server thread that answers proves nothing: the main loop is asked."""
    answer = ask(start(gpu_node(), complaint), "/-/healthy")
    assert (answer.status, answer.body) == (status, words)


@pytest.mark.parametrize(
    ("snapshot", "status"),
    [
        (gpu_node(), 200),
        (failed_node(), 200),
        (starting_node(), 503),
        (None, 503),
        (gpu_node(agent=msgspec.structs.replace(gpu_node().agent, stopping=True)), 503),
    ],
    ids=["ready", "failed node, ready agent", "first round", "no snapshot", "stopping"],
)
def test_ready_means_that_a_round_is_complete(start: Start, snapshot: Snapshot | None, status: int) -> None:
    """An agent is ready once it judged the node, whatever the verdict."""
    assert ask(start(snapshot), "/-/ready").status == status


def test_links_one_by_one_are_asked_for(start: Start) -> None:
    """`?detail=yes` has a series per link, whatever else was asked before; any other question gets the plain page."""
    server = start(gpu_node())
    plain, detailed = ask(server, "/metrics").body, ask(server, "/metrics?detail=yes").body
    assert b'link="17"' in detailed
    assert b'link="17"' not in plain
    assert ask(server, "/metrics?other=1").body == ask(server, "/metrics").body == plain


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/status", "/"])
def test_nothing_is_claimed_before_the_first_judgement(start: Start, path: str) -> None:
    """Without a Snapshot every page is a 503 that says so, and none is an empty success."""
    answer = ask(start(None), path)
    assert (answer.status, answer.body) == (503, b"starting: the node was not judged yet\n")


def test_the_landing_page_shows_the_verdict(start: Start) -> None:
    """A person sees verdict, reason, finding and action; nothing on the page comes from elsewhere."""
    answer = ask(start(failed_node()), "/")
    page = answer.body.decode()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert '<p class="verdict failed" id="verdict">failed</p>' in page
    assert "nvidia.xid.79" in page
    assert "Action: <strong>drain and power-cycle the node</strong>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_a_simulated_node_says_so(start: Start) -> None:
    """Nobody takes a drill for the real thing."""
    assert "Simulated node." in ask(start(gpu_node(simulated=True)), "/").body.decode()


def test_names_of_hardware_cannot_script_the_landing_page(start: Start) -> None:
    """What a device calls itself is text, not markup."""
    evil = Device(
        id="<img src=x>", kind=DeviceKind.NIC, vendor="x", model='"><script>alert(1)</script>', backend="host"
    )
    page = ask(start(gpu_node(devices=(evil,), node="<b>n</b>")), "/").body.decode()
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/api", "/../etc/passwd", "/%2e%2e/"])
def test_other_paths_are_not_found(start: Start, path: str) -> None:
    """What is not offered is 404."""
    assert ask(start(gpu_node()), path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(start: Start, method: str) -> None:
    """Every method but GET and HEAD is refused with what is allowed."""
    answer = ask(start(gpu_node()), "/-/reload", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_the_body(start: Start) -> None:
    """HEAD announces the length that GET sends."""
    server = start(gpu_node())
    head, full = ask(server, "/metrics", "HEAD"), ask(server, "/metrics")
    assert head.body == b""
    assert int(head.headers["Content-Length"]) == len(full.body)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:10917", 200),
        ("127.0.0.1", 200),
        ("[::1]:9", 200),
        ("127.0.0.53:80", 200),
        ("LOCALHOST.", 200),
        ("attacker.example:10917", 421),
        ("localhost.attacker.example", 421),
        ("10.0.0.1:10917", 421),
        ("", 421),
    ],
)
def test_a_page_of_another_name_cannot_read_the_node(start: Start, host: str, status: int) -> None:
    """DNS rebinding: a browser that was told that attacker.example is 127.0.0.1 gets nothing."""
    assert ask(start(gpu_node()), "/metrics", Host=host).status == status


def test_other_names_are_served_where_the_site_opened_the_port(start: Start) -> None:
    """Bound to all addresses, the server is asked by the machine's own names."""
    assert ask(start(gpu_node(), listen="0.0.0.0:0"), "/metrics", Host="n0042:10917").status == 200


def test_no_version_of_server_or_interpreter_is_told(start: Start) -> None:
    """The headers name no software."""
    for path in ("/metrics", "/nothing"):
        headers = ask(start(gpu_node()), path).headers
        assert "Server" not in headers
        assert "Python" not in str(headers)


def test_a_port_in_use_is_one_line_that_names_the_holder(start: Start) -> None:
    """The second server says which port, who holds it and what to do."""
    _, port = start(gpu_node()).address
    with pytest.raises(BusyError, match=rf"port {port} on 127.0.0.1 is in use by .+ \(pid \d+\): stop it .*--listen"):
        HttpServer(f"127.0.0.1:{port}", lambda: None, lambda: None)


def test_a_foreign_address_is_refused() -> None:
    """An address that no interface has is named."""
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1 is not an address of this machine"):
        HttpServer("192.0.2.1:0", lambda: None, lambda: None)


def test_half_open_connections_blind_no_scraper(start: Start) -> None:
    """Any local user may hold as many connections as there are, and more: each scrape is answered, refusals count."""
    server = start(gpu_node())
    stalled = [socket.create_connection(server.address) for _ in range(2 * MAXIMUM_CONNECTIONS)]
    try:
        assert [ask(server, "/metrics").status for _ in range(20)] == [200] * 20
        assert server.refused >= MAXIMUM_CONNECTIONS
    finally:
        for connection in stalled:
            connection.close()


def test_where_all_places_are_taken_by_answers_a_scraper_waits_its_turn(start: Start) -> None:
    """Any local user may ask as fast as the agent answers; before, scrapes were hung up on meanwhile."""
    go_on = threading.Event()

    def slow() -> bytes:
        assert go_on.wait(10)
        return b"report"

    connections = Connections(request_seconds=9.0)
    server = start(gpu_node(), report=slow, connections=connections)
    users = [socket.create_connection(server.address, timeout=10) for _ in range(MAXIMUM_CONNECTIONS)]
    for user in users:
        user.sendall(b"GET /report HTTP/1.0\r\n\r\n")
    deadline = time.monotonic() + 5
    while connections.has_room and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not connections.has_room
    with socket.create_connection(server.address, timeout=10) as scraper:
        scraper.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        assert not select.select([scraper], [], [], 0.3)[0], "it was hung up on, or answered before its turn"
        go_on.set()
        assert scraper.recv(100).startswith(b"HTTP/1.1 200")
    assert server.refused == 0
    for user in users:
        with user:
            assert user.recv(100).startswith(b"HTTP/1.1 200")


def test_readers_that_take_no_answer_keep_no_scraper_waiting(start: Start) -> None:
    """Any local user may ask again and again and read nothing; before, each held a place for two seconds."""
    connections = Connections(request_seconds=60.0, connection_seconds=60.0)
    server = start(gpu_node(), report=lambda: bytes(32 << 20), connections=connections)
    with ExitStack() as open_ones:
        for _ in range(3 * MAXIMUM_CONNECTIONS):
            user = open_ones.enter_context(socket.create_connection(server.address, timeout=10))
            user.sendall(b"GET /report HTTP/1.0\r\n\r\n")
        assert ask(server, "/-/healthy").status == 200
    assert server.refused >= 2 * MAXIMUM_CONNECTIONS


def test_who_asks_all_the_time_has_the_status_encoded_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds, and the loop of the agent would wait for them."""
    encoded: list[object] = []

    def counted(document: object) -> bytes:
        encoded.append(document)
        return encode(document)

    monkeypatch.setattr(http_server, "encode", counted)
    server = start(gpu_node())
    bodies = {ask(server, "/api/v1/status").body for _ in range(5)}
    assert (len(bodies), len(encoded)) == (1, 1)


def test_without_a_thread_one_request_is_lost_and_the_next_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hung up on, so that the client may ask again."""
    lines: list[str] = []
    server = start(gpu_node(), log=lines.append)

    def refuse(*_: object) -> object:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(http_server, "start_new_thread", refuse)
        with socket.create_connection(server.address, timeout=5) as caller:
            caller.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            assert caller.recv(100) == b""
    assert lines == ["http: request failed: RuntimeError: can't start new thread"]
    assert ask(server, "/-/healthy").status == 200


def test_a_request_that_is_cut_off_is_refused(start: Start) -> None:
    """What would follow, such as the name that was asked for, is not known."""
    server = start(gpu_node())
    with socket.create_connection(server.address, timeout=5) as caller:
        caller.sendall(b"GET /metrics HTTP/1.1\r\n")
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(100).startswith(b"HTTP/1.1 400")


def test_an_incomplete_request_ends(start: Start) -> None:
    """A client that says half a request and waits is hung up on, and counted."""
    server = start(gpu_node(), connections=Connections(request_seconds=0.2))
    with socket.create_connection(server.address, timeout=5) as stalled:
        stalled.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert stalled.recv(1) == b""
    assert server.refused == 1


HELD_SECONDS = 1.5
"""A kernel acknowledges an end within 0.2 s (TCP_DELACK_MAX), and is told within that how the connection is."""


def is_held(connection: socket.socket) -> bool:
    """Return whether *connection* still holds its port: it was ended from the other side, and was not reset."""
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP comes when both directions are over, and needs no asking for
    return not poll.poll(HELD_SECONDS * 1000)


def test_a_client_that_never_closes_keeps_no_port_of_the_machine(start: Start) -> None:
    """Whoever is hung up on and stays would hold a port each, until a scraper finds none to come from."""
    server = start(gpu_node(), connections=Connections(most=1))
    with socket.create_connection(server.address, timeout=5) as stalled:
        for _ in range(2):  # the first takes its place; when the second is answered, it has been closed
            assert ask(server, "/-/healthy").status == 200
        assert not is_held(stalled)
        assert stalled.recv(1) == b"", "it sees an end, no error"


def test_a_client_that_was_answered_and_never_closes_keeps_no_port_either(start: Start) -> None:
    """It may read its answer when it likes, whole and without an error."""
    server = start(gpu_node())
    with socket.create_connection(server.address, timeout=5) as kept:
        kept.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(1, socket.MSG_PEEK) == b"H"
        assert not is_held(kept)
        answer = b"".join(iter(lambda: kept.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"Content-Length: {len(body)}".encode() in head


def test_stopping_takes_half_a_second_and_frees_the_port(start: Start) -> None:
    """Also with a client that never asks; the port can be opened again at once."""
    server, took = start(gpu_node()), []
    host, port = server.address
    for _ in range(3):  # a busy machine may stop the test itself for a moment, but not three times
        with socket.create_connection((host, port)):
            began = time.monotonic()
            server.stop()
            took.append(time.monotonic() - began)
        server = start(gpu_node(), listen=f"{host}:{port}")
        assert ask(server, "/-/healthy").status == 200
    assert min(took) < 0.5


def test_nonsense_is_refused_quietly(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no request cost a line to the sender and nothing on standard error."""
    lines: list[str] = []
    server = start(gpu_node(), log=lines.append)
    with socket.create_connection(server.address, timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert connection.recv(200).startswith(b"Bad HTTP/0.9 request type")
    assert ask(server, "/-/healthy").status == 200
    assert lines == []
    assert capfd.readouterr().err == ""


def test_the_url_is_one_that_a_browser_here_can_open(start: Start) -> None:
    """A server on all addresses is reached through loopback."""
    server = start(gpu_node(), listen="0.0.0.0:0")
    assert server.url == f"http://127.0.0.1:{server.address[1]}/"


def test_a_client_that_drips_is_cut_off(start: Start) -> None:
    """A byte now and then keeps no connection alive beyond its time."""
    server = start(gpu_node(), connections=Connections(connection_seconds=0.2))
    with socket.create_connection(server.address, timeout=0.05) as connection:
        began = time.monotonic()
        ended = False
        while not ended and time.monotonic() - began < 5:
            try:
                connection.sendall(b"G")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
    assert ended
    assert time.monotonic() - began < 2


def test_the_newest_report_is_served_and_linked(start: Start) -> None:
    """The page that was rendered last is at /report, and the landing page leads there."""
    server = start(gpu_node(), report=lambda: b"<!doctype html><p>report")
    answer = ask(server, "/report")
    assert (answer.status, answer.body) == (200, b"<!doctype html><p>report")
    assert b'href="/report"' in ask(server, "/").body


def test_a_report_on_a_disk_that_does_not_answer_costs_no_other_page(start: Start) -> None:
    """Any local user may ask for it; the landing page knows of it without a look at the disk."""

    def busy() -> bytes:
        raise BusyError("it is being read")

    server = start(gpu_node(), report=busy, reported=lambda: True)
    assert (ask(server, "/report").status, ask(server, "/report").body) == (503, b"it is being read\n")
    assert b'href="/report"' in ask(server, "/").body


def test_without_a_report_nothing_leads_there(start: Start) -> None:
    """Before the first load there is no link, and the address says why."""
    server = start(gpu_node())
    assert ask(server, "/report").status == 404
    assert b"/report" not in ask(server, "/").body


def test_a_fault_of_ours_is_a_line_in_the_log(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """What a request raised is logged in one line; nothing is written to standard error, and the server goes on."""
    lines: list[str] = []

    def broken() -> bytes | None:
        raise ValueError("broken report")

    server = start(gpu_node(), report=broken, log=lines.append)
    assert ask(server, "/report").status == 500
    assert ask(server, "/-/healthy").status == 200
    (line,) = lines
    assert line.startswith("page /report failed: ValueError: broken report (test_exporter_http.py:")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", sorted(EXHAUSTED))
def test_a_caller_whom_nothing_is_left_for_is_answered_later(
    start: Start, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Descriptors or memory: it is said once, and the loop rests meanwhile."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = start(gpu_node(), log=said.put)

    def refuse(_socket: socket.socket) -> object:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", refuse)
        caller = socket.create_connection(server.address, timeout=10)
        assert os.strerror(number) in said.get(timeout=5)
    with caller:
        caller.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        assert caller.recv(100).startswith(b"HTTP/1.")
    assert said.empty()
