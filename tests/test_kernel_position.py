"""The position in the kernel log that an agent kept costs the next one neither an event nor a processor."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec
import psutil
from fakes.gpu_node import GpuNode

from nodevet.agent.store.database import checksum

MEASURED_SECONDS = 2.0


def test_a_position_that_no_log_has_costs_no_event_and_no_processor(tmp_path: Path, fake_nvml_library: Path) -> None:
    """Another release kept it: the log is read from its begin, and no part of the agent is called again and again."""
    node = GpuNode(tmp_path, fake_nvml_library)
    with node:
        node.log_kernel("hello")
        node.wait_for_verdict("ok", 20.0)
    keep_offset(node.state_dir / "nodevet.db", -5)
    with node:
        node.log_kernel("NVRM: Xid (PCI:0000:80:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        node.wait_for_finding("nvidia.xid.79")
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(MEASURED_SECONDS)
        share = (sum(process.cpu_times()[:2]) - before) / MEASURED_SECONDS
        assert share < 0.5, f"the agent takes {share:.0%} of a processor"


def keep_offset(path: Path, offset: int) -> None:
    """Set the kept position in the store *path* to *offset*, with the checksum that it then has."""
    with sqlite3.connect(path) as database:
        ((kept,),) = database.execute("SELECT value FROM memory WHERE name = 'kernel_log'").fetchall()
        wrong = msgspec.msgpack.encode(msgspec.msgpack.decode(kept) | {"offset": offset})
        values = (wrong, checksum("kernel_log", wrong))
        database.execute("UPDATE memory SET value = ?, checksum = ? WHERE name = 'kernel_log'", values)
    database.close()
