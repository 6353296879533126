"""The rules of kernel_rules.csv, compiled, and the only function that matches them."""

from __future__ import annotations

import functools
import re

import msgspec

from nodevet.checks.core.errors import ReferenceDataError
from nodevet.checks.core.model import Provenance
from nodevet.checks.reference.kernel_policy import KernelRule, Proof, kernel_rules

from .lines import Line, Origin

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?(?![0-9a-f]|[:.][0-9a-f])"
_DRM = r"\[drm(?::[\w.]{1,80}(?: \[amdgpu\])?)?\] "
_AMD_COUNTED = r"(?:\{\d{1,20}\})?\s?(?:socket: \d{1,3},? die: \d{1,3},? ?)?"
_AMD_NAMED = rf"(?:amdgpu %PCI%: |amdgpu: |kfd kfd: )(?:amdgpu: )?(?:{_DRM})?(?:\*ERROR\* )?"
_AMD_FUNCTION = r"\[drm:(?:[\w.]{1,80} \[amdgpu\]|amdgpu_[\w.]{1,80})\] (?:\*ERROR\* )?"
_ANY_FUNCTION = r"\[drm:[\w.]{1,80}\] (?:\*ERROR\* )?"
_AMD_WORD = r"(?:\[drm\] )?\*?ERROR\* "
"""A line without driver and address must name a function of amdgpu: one of its module, or of the built-in driver by its
name prefix. Any other function, or the word ERROR alone, proves nothing: other graphics drivers print the same, and
continue after ``[drm] `` with a process name."""

_MACROS = {
    "%AMDHEAD%": rf"(?:{_AMD_NAMED}|{_AMD_FUNCTION}){_AMD_COUNTED}",
    "%AMDWORD%": rf"(?:{_ANY_FUNCTION}|{_AMD_WORD}){_AMD_COUNTED}",
    "%AMD%": rf"(?:{_AMD_NAMED}|{_AMD_FUNCTION}|{_ANY_FUNCTION}|{_AMD_WORD})?{_AMD_COUNTED}",
    "%PCI%": f"(?P<pci>{_ADDRESS})",
    "%ADDRESS%": _ADDRESS,
}
"""The macros of patterns with the text that many rules share, in replacement order."""

_PCI_BUSES = ("+pci", "+pci_express")
"""Buses whose devices have a PCI address; a port service (``+pci_express:0000:20:01.0:pcie004``) has the port's."""

_ANY_ADDRESS = re.compile(rf"(?<![0-9a-f])(?<![0-9a-f]:){_ADDRESS}", re.IGNORECASE)
_PCI = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7])?\b", re.IGNORECASE
)


class Match(msgspec.Struct, frozen=True):
    """A rule that matches a line, with its matched named groups, and the position where the remaining text begins."""

    rule: KernelRule
    groups: dict[str, str]
    end: int


def match_line(line: Line) -> Match | None:
    """Return the first rule that matches *line* from its first byte, or None. A program's line never matches."""
    if line.origin is Origin.PROGRAM or not line.text:
        return None
    lowered = line.text.lower()
    for number, rule in enumerate(kernel_rules(), start=2):
        if rule.marker not in lowered:
            continue
        found = _compiled(rule, number).match(line.text)
        if found is None:
            continue
        groups = {name: value.strip() for name, value in found.groupdict().items() if value is not None}
        return Match(rule, _with_certain_process(groups, line.text), found.end())
    return None


def _with_certain_process(groups: dict[str, str], text: str) -> dict[str, str]:
    """Return *groups* with the process only where *text* names it unambiguously: a name may contain a false pid."""
    if "pid" not in groups:
        return groups
    processes = [found for pattern in _tasks() if (found := pattern.search(text))]
    if not processes:
        return groups
    if len({found["pid"] for found in processes}) == 1:
        return groups | {"pid": processes[0]["pid"], "process": processes[0]["process"].strip()}
    return {name: value for name, value in groups.items() if name not in ("pid", "process")}


@functools.lru_cache(maxsize=1)
def _tasks() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of amdgpu's line end with a process and its thread, one for each length of the name."""
    task = r"process (?P<process>(?s:.{%d})) pid (?P<pid>\d{1,10}),? thread (?s:.{0,15}) pid \d{1,10}\)?\Z"
    return tuple(re.compile(task % length, re.IGNORECASE) for length in range(16))


def provenance_of(match: Match, line: Line) -> Provenance:
    """Return whether *line* is evidence for *match*: a complete kernel record, of the device that it names."""
    if line.provenance is not Provenance.KERNEL or match.rule.proof is None:
        return Provenance.TEXT
    stated = match.groups.get("port") or match.groups.get("pci")
    if match.rule.proof is Proof.DEVICE and stated and not _is_same_device(stated, line.device):
        return Provenance.TEXT
    return Provenance.KERNEL


def stand_in(line: Line) -> Line:
    """Return *line* of a simulated node's log as the record of its kernel, for the device that it names."""
    address = _ANY_ADDRESS.search(line.text)
    return msgspec.structs.replace(
        line,
        origin=Origin.KERNEL if line.origin is Origin.UNKNOWN else line.origin,
        provenance=Provenance.KERNEL,
        device=f"+pci:{address[0]}" if address else None,
    )


def _is_same_device(stated: str, device: str | None) -> bool:
    """Return whether the DEVICE of a record (``+pci:0000:3b:00.0``) has the address *stated* in its text."""
    bus, _, name = (device or "").partition(":")
    if bus not in _PCI_BUSES:
        return False
    logged, said = normalised_pci(name), normalised_pci(stated)
    if logged is None or said is None:
        return False
    return is_same_address(logged, said)


def normalised_pci(text: str) -> str | None:
    """Return the PCI address in *text* as lower case ``domain:bus:device[.function]``, or None where there is none."""
    match = _PCI.match(text.strip())
    if match is None:
        return None
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus'].lower()}{match['function'] or ''}"


def base_address(pci: str) -> str:
    """Return *pci* without its function, which sources of one device state differently."""
    return pci.partition(".")[0]


def is_same_address(one: str, other: str) -> bool:
    """Return whether two addresses are of one device: by their functions where both have one.

    Root ports of one device number (0000:c0:01.1 and 0000:c0:01.3) lead to different slots.
    """
    if "." in one and "." in other:
        return one == other
    return base_address(one) == base_address(other)


@functools.cache
def _compiled(rule: KernelRule, line: int) -> re.Pattern[str]:
    """Return the pattern of *rule*, compiled for the first text with its marker: most rules never meet one."""
    try:
        return re.compile(expanded(rule.pattern), re.IGNORECASE)
    except re.error as error:
        raise ReferenceDataError(f"kernel_rules.csv, line {line}, column 'pattern': {error}") from error


def expanded(pattern: str) -> str:
    """Return *pattern* with its macros replaced."""
    for macro, text in _MACROS.items():
        pattern = pattern.replace(macro, text)
    return pattern
