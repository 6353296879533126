"""What can be configured: every section with its defaults, ranges and the words that explain it.

Policies of checks are not here: each lies beside its check, and becomes the rest of ``[checks.<name>]``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nodevet.checks.core.model import Mode
from nodevet.checks.reference.vendors import backend_names

Backend = Annotated[str, msgspec.Meta(extra={"choices": backend_names})]
Group = Literal["fast", "slow"]
LogLevel = Literal["debug", "info", "warning", "error"]
Probe = Literal["auto", "on", "off"]
SlurmWriter = Literal["off", "observe", "drain"]
Permits = Literal["cluster", "local"]


def _about(text: str, low: float | None = None, high: float | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=low, le=high)


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command backend: a program that prints readings of devices without a built-in backend."""

    name: Annotated[str, msgspec.Meta(description="a lower-case word; its backend is called command.NAME")]
    argv: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="the program by its absolute path, and its arguments; no shell", min_length=1),
    ]
    environment: Annotated[
        dict[str, str],
        msgspec.Meta(description="variables, added to PATH, HOME, LC_ALL, NODEVET_ROOT and NODEVET_GROUP"),
    ] = {}
    timeout_seconds: (
        Annotated[float, _about("maximum duration of one run; unset: 0.7 times deadline_seconds", 0.1, 600)] | None
    ) = None
    groups: Annotated[
        tuple[Group, ...],
        msgspec.Meta(description="fast: each interval_seconds; slow: each slow_interval_seconds", min_length=1),
    ] = ("fast",)
    required: Annotated[
        bool, msgspec.Meta(description="whether the node is unknown if the command lists no device")
    ] = True

    @property
    def backend(self) -> str:
        """Return what its backend is called."""
        return f"command.{self.name}"

    def run_seconds(self, deadline_seconds: float) -> float:
        """Return for how long a run may last where a reading may take *deadline_seconds*."""
        return 0.7 * deadline_seconds if self.timeout_seconds is None else self.timeout_seconds


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends, which read the devices."""

    enabled: Annotated[
        tuple[Backend, ...],
        msgspec.Meta(
            description="backends in use; one without hardware on this node is retried at growing intervals",
            min_length=1,
        ),
    ] = msgspec.field(default_factory=backend_names)
    commands: Annotated[
        tuple[CommandSettings, ...],
        msgspec.Meta(description="command backends, one [[agent.backends.commands]] table each"),
    ] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return every backend that is read, commands last."""
        return (*self.enabled, *(command.backend for command in self.commands))


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent."""

    listen: Annotated[str, _about("HOST:PORT of metrics and status page; port 0: any free port")] = "127.0.0.1:10917"
    state_dir: Annotated[str, _about("directory of the database, on a local disk")] = ""
    runtime_dir: Annotated[str, _about("directory of socket, lock and state file")] = ""
    node_name: Annotated[str, _about("name of this node in all output; empty: the host name")] = ""
    root: Annotated[str, _about("prefix of /proc and /sys, such as /host in a container")] = "/"
    log_level: Annotated[
        LogLevel, msgspec.Meta(description="lowest logged level; repeated messages have the level debug")
    ] = "info"
    interval_seconds: Annotated[
        float, _about("interval of the fast readings, such as temperature, power and clocks", 1, 3600)
    ] = 10.0
    slow_interval_seconds: Annotated[
        float,
        _about(
            "interval of the slow readings, such as link errors, PCIe and inventory; a value below interval_seconds has"
            " no effect",
            1,
            86400,
        ),
    ] = 60.0
    deadline_seconds: Annotated[float, _about("a driver call that takes longer counts as hung", 1, 600)] = 5.0
    backends: BackendSettings = BackendSettings()


class KernelLogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of kernel events."""

    enabled: Annotated[bool, msgspec.Meta(description="whether the kernel log is read")] = True
    path: Annotated[str, _about("/dev/kmsg, or a log file; events from a file close no gate")] = "/dev/kmsg"


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's own probe, a short load that it repeats."""

    probe: Annotated[
        Probe,
        msgspec.Meta(
            description="on: probe idle devices; auto: the same, but only on a node without a scheduler; off: no probe"
        ),
    ] = "auto"
    interval_seconds: Annotated[float, _about("interval of the probes of a device", 60, 2592000)] = 21600.0
    budget_seconds: Annotated[float, _about("maximum duration of one probe", 1, 600)] = 20.0


class ReportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The report page."""

    directory: Annotated[str, _about("directory of the reports; empty: reports/ in state_dir")] = ""
    keep: Annotated[int, _about("number of reports that are kept", 1, 10000)] = 20


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retention of the history. Changes of episodes are kept without limit."""

    count_days: Annotated[float, _about("retention of the occurrence counts of episodes", 0, 3660)] = 90.0
    rollup_days: Annotated[float, _about("retention of the minute averages (rollups) per device", 0, 366)] = 14.0
    size_limit_bytes: Annotated[
        int, _about("maximum size of the database; the oldest minute averages are deleted first", 1 << 20, 1 << 40)
    ] = 256 << 20


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Effect of hard faults, which one sample proves. Measured faults are only shown."""

    mode: Annotated[
        Mode,
        msgspec.Meta(
            description="observe: show only; gate: also close the gate; drain: also drain the node ([slurm] writer)"
        ),
    ] = Mode.DRAIN


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's own writer to SLURM, for clusters where nothing else drains."""

    writer: Annotated[
        SlurmWriter,
        msgspec.Meta(
            description="drain: the agent drains its node for hard faults; observe: it only reports the drain"
        ),
    ] = "off"
    node_name: Annotated[str, _about("name of this node in SLURM; empty: agent.node_name")] = ""
    scontrol: Annotated[str, _about("path of scontrol, or its name in PATH")] = "scontrol"
    conf: Annotated[str, _about("path of slurm.conf; empty: SLURM's own default")] = ""
    timeout_seconds: Annotated[float, _about("maximum duration of one call of scontrol", 0.1, 5)] = 5.0
    poll_seconds: Annotated[
        float, _about("interval of the queries to SLURM while the node is drained or has a hard fault", 1, 3600)
    ] = 30.0
    reason_prefix: Annotated[
        str, _about("prefix of every drain reason; use the same on all nodes, and never change it")
    ] = "nodevet"
    permit: Annotated[
        Permits,
        msgspec.Meta(
            description="cluster: nodevet closes this node only with writer = drain and a permit within the limits"
            " below; local: the agent always holds the permit, and no limit applies (single node, or no operator rights"
            " in SLURM)"
        ),
    ] = "cluster"
    maximum_drained_ratio: Annotated[
        float,
        _about(
            "maximum share of all nodes, and of each partition, that nodevet keeps closed at the same time; always at"
            " least one node. Write 0.01 for 1 %, 1.0 for every node; `1` without a decimal point is rejected",
            0,
            1,
        ),
    ] = 0.10
    maximum_new_ratio: Annotated[
        float,
        _about(
            "maximum share of all nodes, and of each partition, that nodevet closes within an hour; `1` is"
            " rejected too",
            0,
            1,
        ),
    ] = 0.01
    minimum_new: Annotated[int, _about("number of nodes that may always be closed within an hour", 1, 1000)] = 2


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one check is run: whether, by which policy, and how far its hard findings reach (the site's mode at most)."""

    policy: msgspec.Struct
    enabled: bool = True
    mode: Mode = Mode.DRAIN


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All settings in force, with directories and names filled in. ``file`` is None where no file was read."""

    agent: AgentSettings
    kernel_log: KernelLogSettings
    load: LoadSettings
    report: ReportSettings
    store: StoreSettings
    gate: GateSettings
    slurm: SlurmSettings
    checks: dict[str, CheckSettings]
    file: str | None = None
