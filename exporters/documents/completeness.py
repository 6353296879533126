"""Completeness of a burn-in in its document: the planned and the verified formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.model import Device, State
from nodevet.checks.engine.completeness import Completeness, Standing

_WORDS = {State.OK: "complete", State.FAILED: "wrong", State.UNKNOWN: "incomplete"}


class AccountDocument(msgspec.Struct, frozen=True):
    """State of one planned number format on one device, and why it was not verified."""

    device: str
    dtype: str
    standing: str
    why: str = ""


class CompletenessDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all planned formats were verified fully: ``complete``, ``incomplete`` or ``wrong``, and by format."""

    state: str
    reason: str
    planned: int
    verified: int
    accounts: tuple[AccountDocument, ...]

    @property
    def unproved(self) -> tuple[AccountDocument, ...]:
        """Return the formats that were not verified, including those that a device lacks."""
        return tuple(entry for entry in self.accounts if entry.standing != Standing.VERIFIED)


def completeness_document(load: Completeness, names: Mapping[str, str]) -> CompletenessDocument:
    """Return *load* for programs; its reason names devices by *names*."""
    return CompletenessDocument(
        state=_WORDS[load.state],
        reason=load.reason(names),
        planned=len(load.accounts),
        verified=load.verified,
        accounts=tuple(
            AccountDocument(entry.device, entry.dtype, entry.standing.value, entry.why) for entry in load.accounts
        ),
    )


def device_names(devices: Iterable[Device]) -> dict[str, str]:
    """Return the name of each device for people: its PCI address, else its id."""
    return {device.id: device.pci or device.id for device in devices}
