"""Prometheus' node exporter on a tree of files: a reader of /sys that is not ours, to compare with."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

import pytest
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["NodeExporter"]

COMMAND = "prometheus-node-exporter"
STOP_SECONDS = 5.0
ERROR_COUNTS = {
    "node_edac_correctable_errors_total": "corrected",
    "node_edac_uncorrectable_errors_total": "uncorrected",
}


class NodeExporter:
    """A node exporter that reads sensors and memory controllers below *root*; leave it as a context manager."""

    def __init__(self, root: Path) -> None:
        """Find the command, or skip the test."""
        path = shutil.which(COMMAND)
        if path is None:
            pytest.skip(f"{COMMAND} is not installed")
        collectors = ("--collector.disable-defaults", "--collector.hwmon", "--collector.edac")
        places = (f"--path.sysfs={root / 'sys'}", f"--path.procfs={root / 'proc'}")
        self._command = (path, *collectors, *places, "--web.listen-address=127.0.0.1:0")

    def __enter__(self) -> NodeExporter:
        """Start it and wait until it says where it listens."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            found = re.search(r"Listening on.*?127\.0\.0\.1:([1-9]\d*)", line)
            if found:
                self._port = int(found[1])
                return self
        self.__exit__(None, None, None)
        raise AssertionError(f"{COMMAND} ended before it listened: {''.join(said)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it and wait for its end."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise

    def temperatures(self) -> dict[tuple[str, str, str], float]:
        """Read anew; return temperatures and limits in degrees by chip, label, and ``input`` or the limit's name."""
        samples = self._samples()
        labels = {
            (sample_labels["chip"], sample_labels["sensor"]): sample_labels["label"]
            for name, sample_labels, _ in samples
            if name == "node_hwmon_sensor_label"
        }
        found = {}
        for name, where, value in samples:
            match = re.fullmatch(r"node_hwmon_temp(?:_(crit|emergency))?_celsius", name)
            if match and (where["chip"], where["sensor"]) in labels:
                found[where["chip"], labels[where["chip"], where["sensor"]], match[1] or "input"] = value
        return found

    def memory_errors(self) -> dict[tuple[int, str], float]:
        """Read anew; return the counts by number of the memory controller, and ``corrected`` or ``uncorrected``."""
        return {
            (int(labels["controller"]), ERROR_COUNTS[name]): value
            for name, labels, value in self._samples()
            if name in ERROR_COUNTS
        }

    def _samples(self) -> list[tuple[str, dict[str, str], float]]:
        """Return name, labels and value of everything; a collector that failed fails the test."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            page = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, page
        samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]
        succeeded = {
            labels["collector"]: value for name, labels, value in samples if name == "node_scrape_collector_success"
        }
        assert succeeded == {"hwmon": 1, "edac": 1}, page
        return samples
