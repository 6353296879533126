"""A real Prometheus and a real Alertmanager on loopback, with the files that we ship, and a receiver of its alerts.

The shipped files are used as they are, but for time and place: intervals and waits of a second, addresses of the
test. So what is tested is what a site installs.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

__all__ = ["Message", "PrometheusStack", "hurried"]

START_SECONDS = 20.0
STOP_SECONDS = 10.0
FIRST_SCRAPE_SECONDS = 25.0
"""Prometheus scrapes targets that it discovered five seconds ago; a busy machine adds to that."""

Message = dict[str, Any]
"""One alert as the receiver got it: ``status``, ``labels``, ``annotations``, and the ``path`` it was sent to."""


def hurried(rules: str) -> str:
    """Return the shipped *rules* with every wait of an alert cut to a second, and no interval of a group's own."""
    rules = re.sub(r"(?m)^( +)for: \S+$", r"\1for: 1s", rules)
    return re.sub(r"(?m)^ +interval: \S+\n", "", rules)


class PrometheusStack:
    """Scrapes *targets* (addresses by name) every second by the shipped configuration. ``with`` starts and stops it."""

    def __init__(self, directory: Path, shipped: Path, targets: Mapping[str, str]) -> None:
        """Prepare everything in *directory*; *shipped* is ``deploy/prometheus``."""
        self._directory = directory
        self._shipped = shipped
        self._targets = targets
        self._processes: list[subprocess.Popen[bytes]] = []
        self._receiver = _Receiver()
        self.url = ""

    def __enter__(self) -> Self:
        """Start everything and wait until it answers."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything, whatever happened."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._receiver.close()

    def _start(self) -> None:
        self._receiver.start()
        alertmanager = self._alertmanager()
        self._write("nodevet.rules.yml", hurried((self._shipped / "nodevet.rules.yml").read_text()))
        self._write("nodevet.targets.json", json.dumps([{"targets": sorted(self._targets.values())}]))
        self._write("prometheus.yml", yaml.safe_dump(self._scrape(alertmanager)))
        self.url = "http://" + self._run(
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=tsdb",
            "--web.listen-address=127.0.0.1:0",
            "--log.level=warn",
        )
        self._wait(lambda: self._answers(f"{self.url}/-/ready"), START_SECONDS, "Prometheus is not ready")

    def _alertmanager(self) -> str:
        routes = (self._shipped / "alertmanager.yml").read_text()
        routes = routes.replace("http://localhost:5001", self._receiver.url)
        routes = re.sub(r"group_wait: \S+", "group_wait: 0s", routes)
        routes = re.sub(r"group_interval: \S+", "group_interval: 1s", routes)
        self._write("alertmanager.yml", routes)
        address = self._run(
            "prometheus-alertmanager",
            "--config.file=alertmanager.yml",
            "--storage.path=alertmanager",
            "--web.listen-address=127.0.0.1:0",
            "--cluster.listen-address=",  # empty: it gossips with nobody
            "--log.level=warn",
        )
        self._wait(lambda: self._answers(f"http://{address}/-/ready"), START_SECONDS, "Alertmanager is not ready")
        return address

    def _scrape(self, alertmanager: str) -> dict[str, Any]:
        """Return the shipped configuration at the pace and the addresses of the test."""
        found: dict[str, Any] = yaml.safe_load((self._shipped / "scrape.yml").read_text())
        found["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        found["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        return found

    def _write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def _run(self, *command: str) -> str:
        """Start *command* and return the address that it listens on; port 0 was asked for, so no other can have it."""
        with (self._directory / f"{command[0]}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self._directory, stdout=log, stderr=log)
        self._processes.append(process)
        found = self._wait(lambda: self._listening(process), START_SECONDS, f"{command[0]} does not listen")
        return str(found)

    def _listening(self, process: subprocess.Popen[bytes]) -> str | None:
        if process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {self._logs()}")
        open_ports = [
            connection.laddr
            for connection in psutil.Process(process.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        return f"127.0.0.1:{open_ports[0].port}" if open_ports else None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of *expression* now: ``metric`` and ``value`` of each series."""
        result: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return result

    def rule_errors(self) -> dict[str, str]:
        """Return why rules could not be evaluated, by their names; those that were not evaluated yet count too."""
        rules = [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
        return {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"}

    def _ask(self, what: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 (our own loopback address)
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{what} {parameters}: {error.read().decode()}") from error

    def wait_until_scraped(self) -> None:
        """Wait until every target was scraped once."""
        self.wait_for(f"count(up == 1) == {len(self._targets)}", FIRST_SCRAPE_SECONDS)

    def wait_for(self, expression: str, seconds: float = 30.0) -> list[dict[str, Any]]:
        """Ask until *expression* has a result, and return it."""
        found: list[dict[str, Any]] = self._wait(lambda: self.query(expression), seconds, f"{expression} has no result")
        return found

    def wait_for_message(self, status: str, seconds: float = 30.0, **labels: str) -> Message:
        """Wait until the receiver gets an alert that is ``firing`` or ``resolved`` with these *labels*."""

        def look() -> Message | None:
            return next((entry for entry in self.messages if _fits(entry, status, labels)), None)

        found: Message = self._wait(look, seconds, f"no message {status} {labels}; {len(self.messages)} others")
        return found

    @property
    def messages(self) -> list[Message]:
        """Return every alert that the receiver got, in their order."""
        return list(self._receiver.messages)

    def _answers(self, url: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (our own loopback address)
                status: int = answer.status
                return status == 200
        except OSError:
            return False

    def _wait(self, look: Callable[[], Any], seconds: float, what: str) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{what} within {seconds:g} s; {self._logs()}")

    def _logs(self) -> str:
        return "; ".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self._directory.glob("*.log")))


def _fits(message: Message, status: str, labels: Mapping[str, str]) -> bool:
    return bool(message["status"] == status and labels.items() <= message["labels"].items())


class _Receiver:
    """A webhook: keeps every alert that is posted to it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        messages = self.messages

        class Hook(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages.extend({**alert, "path": self.path} for alert in body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
