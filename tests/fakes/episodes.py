"""Episodes for tests of what keeps them: the smallest that the vocabulary accepts."""

from __future__ import annotations

from nodevet.checks.core.model import Episode, EpisodeState, Finding, Instant, Key, Outcome

BOOT_ID = "boot-1"


def moment(seconds: float, boot_id: str = BOOT_ID) -> Instant:
    """Return the moment *seconds* after the boot."""
    return Instant(boot_id, round(seconds * 1e9), 1.75e9 + seconds)


def episode(
    code: str = "nvidia.xid.79",
    device: str = "GPU-0",
    *,
    state: EpisodeState = EpisodeState.OPEN,
    count: int = 1,
    seen: float = 10.0,
    boot_id: str = BOOT_ID,
    serial: str | None = None,
    note: str | None = None,
) -> Episode:
    """Return an episode of *code* on *device* that opened 10 s after the boot and was last seen at *seen*."""
    opened, last = moment(10.0, boot_id), moment(seen, boot_id)
    return Episode(
        key=Key(code, device),
        check="kernel-log",
        state=state,
        outcome=Outcome.FAIL,
        finding=Finding(check="kernel-log", code=code, outcome=Outcome.FAIL, message="lost", device=device),
        opened=opened,
        last_seen=last,
        confirmed=None if state is EpisodeState.PENDING else opened,
        cleared=last if state is EpisodeState.CLEARED else None,
        count=count,
        serial=serial,
        note=note,
    )
