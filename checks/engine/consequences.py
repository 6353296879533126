"""One loss is one finding: readings that a silent device cannot give are a consequence of the loss. Pure.

So are a link that is down because the board at its other end is lost, and the loss of each part of a lost board: the
loss lists them, and while it lasts they do not count.

The loss has its own code. Its consequences neither count nor are shown; if only other checks were requested, the loss
is the reason why they could not measure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from nodevet.checks.core.model import NODE, Action, Device, Finding, Key, Outcome
from nodevet.checks.reference.expected_links import Which, expected_links

from .losses import GONE
from .view import KnownDevices

LOSSES = frozenset(
    {"device.lost", "device.reset_required", "device.faulty", "reader.hung", "reader.stuck", "reader.crashed"}
)
"""Codes for a device that does not answer."""

UNREAD = "device.unread"

DOWN, ALL_DOWN, FEWER = "link.down", "link.all_down", "link.fewer"

ENDS = GONE | {"device.reset_required", "device.faulty"}
"""Codes for a board that keeps no link up."""


def counted_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *findings* with no reading of a lost device required by itself."""
    findings = tuple(findings)
    notable = _notable(findings)
    lost = {device for device, finding in _causes(notable).items() if finding.outcome is Outcome.FAIL}
    lost |= parts_lost(notable).keys()
    if not lost:
        return findings
    return tuple(
        msgspec.structs.replace(finding, required=False) if _follows(finding, lost) else finding for finding in findings
    )


def shown_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *findings* without the consequences of a loss: one finding per silent device."""
    findings = tuple(findings)
    notable = _notable(findings)
    parts = parts_lost(notable)
    causes = {device: finding for device, finding in _causes(notable).items() if device not in parts}
    lost = causes.keys() | parts.keys()
    if not lost:
        return findings
    return tuple(
        finding for finding in findings if causes.get(finding.device) is finding or not _follows(finding, lost)
    )


def seen_by(findings: Iterable[Finding], names: Collection[str]) -> tuple[Finding, ...]:
    """Return the findings of the checks *names*, and each loss that kept them from measuring."""
    findings = tuple(findings)
    followed = {finding.follows for finding in findings if finding.follows and finding.check in names}
    causes = {**_causes(findings), **_ends(findings, followed)}
    return tuple(
        finding
        if finding.check in names
        else msgspec.structs.replace(finding, outcome=Outcome.UNMEASURED, required=True)
        for finding in findings
        if finding.check in names or causes.get(finding.device) is finding
    )


def _notable(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return the few *findings* that tell of something, and the lost parts: each function here looks at these alone."""
    quiet = Outcome.PASS, Outcome.SKIPPED  # looked up once: an attribute of an enumeration takes longer than comparing
    return [finding for finding in findings if finding.outcome not in quiet or finding.follows]


def _causes(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return the finding of each device that does not answer, the most severe first."""
    causes: dict[str, Finding] = {}
    for finding in findings:
        if finding.outcome in (Outcome.PASS, Outcome.SKIPPED):
            continue
        is_loss = finding.code in LOSSES and finding.outcome is Outcome.FAIL
        is_unread = finding.code == UNREAD and finding.outcome is Outcome.UNMEASURED
        if finding.device != NODE and (is_loss or (is_unread and finding.device not in causes)):
            causes[finding.device] = finding
    return causes


def _follows(finding: Finding, devices: Collection[str]) -> bool:
    return finding.device in devices and finding.outcome is Outcome.UNMEASURED


# ---- Parts of a lost board -------------------------------------------------------------------------------------


def parts_lost(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the id of the board of each part that is lost with its board, by the id of the part."""
    return {finding.device: finding.follows for finding in findings if finding.follows and finding.code in ENDS}


def _with_parts(findings: tuple[Finding, ...], boards: Mapping[str, Device]) -> tuple[Finding, ...]:
    """Return *findings* with the loss of a part as a consequence of its board's: they fall off the bus together."""
    lost = _ends(findings)
    parents = {name: board.parent for name, board in boards.items() if board.parent in lost}
    told: dict[Key, Finding] = {}
    parts: dict[str, list[str]] = {}
    for finding in findings:
        parent = parents.get(finding.device)
        if parent is None or finding.code not in ENDS or finding.outcome not in (Outcome.FAIL, Outcome.UNMEASURED):
            continue
        said = f"{_subject(finding)}: it follows from what {_subject(lost[parent])} has"
        told[finding.key] = msgspec.structs.replace(
            finding, outcome=Outcome.SKIPPED, action=Action.NONE, follows=parent, required=False, message=said
        )
        if _subject(finding) not in parts.setdefault(parent, []):
            parts[parent].append(_subject(finding))
    for board, names in parts.items():
        said = f"{lost[board].message}; its parts are lost with it: {', '.join(names)}"
        told[lost[board].key] = msgspec.structs.replace(lost[board], message=said)
    return tuple(told.get(finding.key, finding) for finding in findings) if told else findings


# ---- Links whose other end is lost ----------------------------------------------------------------------------


def joined(findings: Iterable[Finding], devices: Iterable[Device], memory: KnownDevices) -> tuple[Finding, ...]:
    """Return *findings* with each link that is down because its peer is lost, and each lost part, as a consequence.

    A port reports, or reported, the board at its other end. If it did not, boards of one make that are all connected to
    each other lost, with a board, as many links each as connect two of them. The loss lists its consequences; once the
    lost board answers, a link that is still down counts by itself.
    """
    findings = tuple(findings)
    if not any(finding.outcome in (Outcome.WARN, Outcome.FAIL) for finding in _notable(findings)):
        return findings
    boards = {entry.device.id: entry.device for entry in memory.seen.values()} | {board.id: board for board in devices}
    findings = _with_parts(findings, boards)
    lost = _ends(findings)
    bad = [finding for finding in findings if finding.outcome in (Outcome.WARN, Outcome.FAIL)]
    dark = {finding.device: finding for finding in bad if finding.code == ALL_DOWN}
    if not any(finding.code in (DOWN, ALL_DOWN) and finding.device not in lost for finding in bad):
        return findings
    fabric = _Fabric(boards, memory, dark | lost)
    follows = fabric.down_with(finding for finding in findings if _is_bad(finding, DOWN))
    alone = _Fabric(boards, memory, lost)
    follows |= {finding.key: end for name, finding in dark.items() if name not in lost and (end := alone.all_of(name))}
    number = {name: sum(key.device == name and key.code == DOWN for key in follows) for name in boards}
    for finding in findings:
        ends = [end for key, end in follows.items() if key.device == finding.device and key.code == DOWN]
        if _is_bad(finding, FEWER) and ends and _makes_up(finding, number[finding.device]):
            follows[finding.key] = ends[0]
    return tuple(_told(finding, findings, follows, dark | lost) for finding in findings)


def _told(
    finding: Finding, findings: tuple[Finding, ...], follows: dict[Key, str], ends: dict[str, Finding]
) -> Finding:
    """Return *finding* as a consequence of a loss, or as a loss with its consequences, or unchanged."""
    end = follows.get(finding.key)
    if end is not None:
        said = f"{finding.message.partition('; ')[0]}; it follows from what {_subject(ends[end])} has"
        return msgspec.structs.replace(finding, outcome=Outcome.SKIPPED, action=Action.NONE, follows=end, message=said)
    if ends.get(finding.device) is not finding:
        return finding
    with_it = [_subject(other) for other in findings if follows.get(other.key) == finding.device]
    said = f"{finding.message}; down with it: {', '.join(with_it)}" if with_it else finding.message
    return msgspec.structs.replace(finding, message=said)


def _subject(finding: Finding) -> str:
    return finding.message.partition(": ")[0]


def _is_bad(finding: Finding, *codes: str) -> bool:
    return finding.code in codes and finding.outcome in (Outcome.WARN, Outcome.FAIL)


def _ends(findings: Iterable[Finding], among: Collection[str] | None = None) -> dict[str, Finding]:
    """Return the finding of the loss of each lost device, of those *among* or of all."""
    return {
        finding.device: finding
        for finding in findings
        if finding.outcome is Outcome.FAIL
        and (finding.code in ENDS or (among is not None and finding.code == ALL_DOWN))
        and finding.device != NODE
        and (among is None or finding.device in among)
    }


def _makes_up(finding: Finding, number: int) -> bool:
    """Return whether a board with fewer links than expected has as many as expected with *number* more."""
    if finding.limit is None or isinstance(finding.value, str) or finding.value is None:
        return False
    return not finding.limit.holds(finding.value + number)


class _Fabric(msgspec.Struct, frozen=True):
    """Boards by id, their remembered state, and the findings that some of them keep no link up."""

    boards: dict[str, Device]
    memory: KnownDevices
    ends: dict[str, Finding]

    def peer(self, name: str, port: int | None) -> str | None:
        """Return the peer that the port of a board reports or reported; None if it never did."""
        seen = self.memory.seen.get(name)
        told = (*self.boards[name].links, *(seen.device.links if seen else ()))
        return next((link.peer for link in told if link.port == port and link.peer is not None), None)

    def lost_at(self, peer: str | None) -> str | None:
        """Return the lost board of *peer*, an id or a PCI address."""
        lost = (self.boards[name] for name in self.ends if name in self.boards)
        return next((board.id for board in lost if peer is not None and peer in (board.id, board.pci)), None)

    def down_with(self, down: Iterable[Finding]) -> dict[Key, str]:
        """Return, by the key of each of the links *down*, the lost board that caused it."""
        known = [entry for entry in down if entry.device not in self.ends and entry.device in self.boards]
        peers = {entry.key: self.peer(entry.device, entry.part.index) for entry in known}
        told = {key: end for key, peer in peers.items() if (end := self.lost_at(peer))}
        untold = [key for key, peer in peers.items() if peer is None]
        found = dict(told)
        for end in self.ends:
            found |= self._untold_with(end, told, untold)
        return found

    def _untold_with(self, end: str, told: dict[Key, str], untold: list[Key]) -> dict[Key, str]:
        """Return *untold* links that went down with the boards of the make of *end*, if all others lost their share."""
        if end not in self.boards:
            return {}
        makes = [name for name, board in self.boards.items() if self._is_like(board, self.boards[end])]
        lost = [name for name in makes if name in self.ends]
        found: dict[Key, str] = {}
        for name in makes:
            if name in self.ends:
                continue
            seen, own = self.memory.seen.get(name), [key for key in untold if key.device == name]
            went = [key for key in told if key.device == name and told[key] in lost]
            ports = {*(seen.links_up if seen else ()), *(key.part.index for key in own + went)}
            shares = self._shares(name, len(ports), len(makes) - 1)
            if len(own) + len(went) not in {share * len(lost) for share in shares} or self._has_switch(name):
                return {}
            found |= dict.fromkeys(own, end)
        return found

    def _shares(self, name: str, ports: int, others: int) -> set[int]:
        """Return how many links may connect a board with *ports* ports to each of the *others* of its make.

        Some ports may lead outside the node: the table lists how many do not.
        """
        row = expected_links(self.boards[name])
        inside = {ports} | ({row.links} if row is not None and row.which is Which.SOME and row.links < ports else set())
        return {links // others for links in inside if links >= others and links % others == 0}

    def all_of(self, name: str) -> str | None:
        """Return a lost board if all links of *name* led to lost ones, or every other board of its make is lost."""
        board = self.boards.get(name)
        if board is None:
            return None
        peers = {peer for link in board.links if (peer := self.peer(name, link.port))}
        if peers:
            ends = [self.lost_at(peer) for peer in sorted(peers)]
        else:
            others = (other.id for other in self.boards.values() if other is not board and self._is_like(other, board))
            ends = [other if other in self.ends else None for other in others]
        return ends[0] if ends and all(ends) else None

    def _has_switch(self, name: str) -> bool:
        return any(link.peer == "switch" for link in self.boards[name].links)

    @staticmethod
    def _is_like(one: Device, other: Device) -> bool:
        return (one.vendor, one.model, one.kind, one.parent) == (other.vendor, other.model, other.kind, None)
