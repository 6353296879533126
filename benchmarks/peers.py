"""Exporters that others use, started beside ours in the same run: nvitop-exporter and Prometheus' node_exporter."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from harness import say

NVITOP_EXPORTER = "nvitop-exporter"
NODE_EXPORTER = "prometheus-node-exporter"


class Peer(msgspec.Struct, frozen=True):
    """An exporter that runs: its process id and where its page is."""

    pid: int
    url: str


@contextmanager
def nvitop_exporter(environment: Mapping[str, str], interval_seconds: float) -> Iterator[Peer | None]:
    """Run nvitop-exporter on the driver that *environment* names; None where it is not installed."""
    port = _free_port()
    with _running(
        [NVITOP_EXPORTER, "--port", str(port), "--interval", str(interval_seconds)], port, environment
    ) as peer:
        yield peer


@contextmanager
def node_exporter() -> Iterator[Peer | None]:
    """Run node_exporter on this machine; None where it is not installed."""
    port = _free_port()
    with _running([NODE_EXPORTER, f"--web.listen-address=127.0.0.1:{port}"], port, {}) as peer:
        yield peer


@contextmanager
def _running(command: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[Peer | None]:
    if shutil.which(command[0]) is None:
        say(f"{command[0]} is not in the PATH and was not measured beside")
        yield None
        return
    url = f"http://127.0.0.1:{port}/metrics"
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=quiet, stderr=quiet) as process:
        try:
            _await(url)
            yield Peer(process.pid, url)
        finally:
            process.terminate()


def _await(url: str) -> None:
    for _ in range(200):
        try:
            page(url)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{url} does not answer")


def page(url: str) -> str:
    """Return the page at *url*, on loopback."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a loopback address of our own
        body: bytes = answer.read()
        return body.decode()


def series_of(text: str) -> int:
    """Return how many series the page *text* has."""
    return sum(not line.startswith("#") for line in text.splitlines())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
