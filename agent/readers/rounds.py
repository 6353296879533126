"""The rounds of a reader: which group is due, which devices are still to be read, and which are reported as unread."""

from __future__ import annotations

import msgspec

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Device, Failure, Sample
from nodevet.checks.core.wire import RoundDone
from nodevet.checks.engine.view import Cadence

from .at_work import AtWork, device_at_work
from .calls_of_users import LeftOut
from .quarantine import Quarantine
from .stages import HELD_UP_SECONDS
from .telling import Listed, Telling
from .unread import why_unread


class _Schedule(msgspec.Struct):
    """The next due time of a group, and the number of its rounds that were requested or missed."""

    cadence: Cadence
    due: float
    number: int = 0

    def advance(self, now: float) -> None:
        """Count the due round and set the next one in step; rounds missed long ago are not repeated."""
        self.number += 1
        self.due += self.cadence.interval_seconds
        if self.due <= now:
            self.due = now + self.cadence.interval_seconds

    @property
    def given_up(self) -> float:
        """Return when a round that could not be requested is reported as missed."""
        return self.due + self.cadence.deadline_seconds


class Round(msgspec.Struct):
    """The round in progress: the devices still to be read, in order, and the deadline of the next one."""

    group: str
    number: int
    began: float
    seconds: float
    deadline: float
    left: list[str]
    extended: bool = False
    unreadable: Failure | None = None

    def extend(self, now: float) -> bool:
        """Give the next device more time, once, if the agent itself was delayed; return whether it was."""
        if now - self.deadline <= HELD_UP_SECONDS or self.extended:
            return False
        self.extended = True
        self.deadline = now + HELD_UP_SECONDS
        return True


class Rounds:
    """The rounds of one backend, its devices, and what is skipped: devices in quarantine, and calls of users."""

    def __init__(self, plan: ReaderPlan, clock: Clock, telling: Telling) -> None:
        """Make every group due now; a round begins once the backend tells which groups and devices it has."""
        self._plan = plan
        self._clock = clock
        self._telling = telling
        self._schedules = {group: _Schedule(cadence, clock.monotonic()) for group, cadence in plan.cadences.items()}
        self._guilty: str | None = None
        self.groups: tuple[str, ...] = ()
        self.current: Round | None = None
        self.quarantine = Quarantine()
        self.left_out = LeftOut()
        self.devices: tuple[Device, ...] = ()
        """The devices as last listed; they stay known while their reader is down."""
        self.listed_anew = False
        """Whether the list of devices changed since the other readers were informed."""

    def ask(self, group: str | None = None) -> None:
        """Make *group* (or every group) due now."""
        for name, schedule in self._schedules.items():
            if group in (None, name):
                schedule.due = self._clock.monotonic()

    @property
    def settled(self) -> bool:
        """Return whether every due round is answered."""
        now = self._clock.monotonic()
        return self.current is None and not any(entry.due <= now for entry in self._offered().values())

    @property
    def next_deadlines(self) -> tuple[float | None, ...]:
        """Return when the next round is due between two rounds, and when what is skipped is tried again."""
        due = min((entry.due for entry in self._offered().values()), default=None) if self.current is None else None
        return due, self.quarantine.next_deadline, self.left_out.next_deadline

    @property
    def next_missed(self) -> float | None:
        """Return when a round is missed that cannot be requested."""
        return min((entry.given_up for entry in self._missable().values()), default=None)

    def try_again(self, now: float) -> str:
        """Return why the child is replaced: what was skipped is tried again; empty if nothing is."""
        if self.quarantine.try_again(now):
            return "retries a skipped device"
        return "retries a skipped call" if self.left_out.try_again(now) else ""

    def begin(self, now: float) -> Round | None:
        """Begin the round that is due, and return it; None if none is."""
        for group, schedule in self._offered().items():
            if schedule.due <= now:
                schedule.advance(now)
                seconds = schedule.cadence.deadline_seconds
                self.current = Round(group, schedule.number, now, seconds, now + seconds, self._reading_order())
                return self.current
        return None

    def answer(self, group: str, device: str, now: float) -> bool:
        """Begin the time of the next device, because *device* was read; False if it was not to be read now."""
        current = self.current
        if current is None or group != current.group or device not in current.left:
            return False
        current.left.remove(device)
        current.began = now
        current.deadline = now + current.seconds
        self.quarantine.record_success(device, now)
        return True

    def end(self, done: RoundDone) -> bool:
        """End the round in progress; False if it is another one, or not at its end."""
        current = self.current
        if current is not None and current.unreadable:
            for device in current.left:
                self._tell_unread(device, current.group, current.number, current.unreadable)
            current.left.clear()
        if current is None or (done.group, done.round) != (current.group, current.number) or current.left:
            return False
        self.current = None
        return True

    def tell_skipped(self, done: RoundDone) -> None:
        """Report every quarantined device as unread in the round that is *done*."""
        for device, failure in self.quarantine.skipped.items():
            self._tell_unread(device, done.group, done.round, failure)

    def is_last(self, group: str) -> bool:
        """Return whether *group* is the last one of the backend."""
        return group in [known for known in self.groups if known in self._schedules][-1:]

    def abort(self) -> None:
        """Make the unfinished round due again at once."""
        if self.current is not None:
            self._schedules[self.current.group].due = self._clock.monotonic()
            self.current = None

    def charge(self, device: str | None, failure: Failure) -> None:
        """Abort the round because of *failure*; if *device* is the cause, report it as unread, or quarantine it."""
        self._guilty = device
        if device is not None:
            self.quarantine.record_failure(device, failure, self._clock.monotonic())
            for group in {self.current.group} if self.current else self._missable():
                self._tell_unread(device, group, self._schedules[group].number, failure)
        self.abort()

    def excuse(self, device: str, failure: Failure) -> bool:
        """Record *failure* of a call on *device*, which is not the cause of it; return whether it is skipped now."""
        self.quarantine.record_excused(device, failure, self._clock.monotonic())
        return device in self.quarantine.skipped

    def tell_missed(self, now: float, failure: Failure | None) -> None:
        """Report every known device as unread, once per round that could not be requested because of *failure*."""
        for group, schedule in self._missable().items():
            if now < schedule.given_up:
                continue
            schedule.advance(now)
            for device in self.devices:
                why = self.quarantine.skipped.get(device.id) or why_unread(device.id, failure, self._guilty)
                self._tell_unread(device.id, group, schedule.number, why)

    def lacks(self, devices: tuple[Device, ...]) -> bool:
        """Return whether *devices* lack one that was listed before."""
        return not {device.id for device in self.devices} <= {device.id for device in devices}

    def list_devices(self, devices: tuple[Device, ...]) -> None:
        """Store *devices*, and quarantined ones that the backend could not list without accessing them."""
        left_alone = self.quarantine.skipped.keys() - {device.id for device in devices}
        together = (*devices, *(device for device in self.devices if device.id in left_alone))
        if together != self.devices:
            self.listed_anew = self.listed_anew or bool(self.devices)
            self.devices = together
            self._telling.take(Listed(self._plan.backend, together))

    def busy_with(self, child: AtWork) -> str | None:
        """Return the device that the *child* was reading."""
        left = self.current.left if self.current is not None else []
        return device_at_work(child, self.devices, left[0] if left else None)

    def _reading_order(self) -> list[str]:
        """Return the devices in the order in which the child reads them."""
        skipped, suspects = self.quarantine.skipped, self.quarantine.suspects
        wanted = [device.id for device in self.devices if device.id not in skipped]
        return sorted(wanted, key=lambda device: device in suspects)

    def _tell_unread(self, device: str, group: str, number: int, failure: Failure) -> None:
        """Add a failed sample; a device that was never listed has none, only the status names it."""
        if any(known.id == device for known in self.devices):
            backend, simulated, now = self._plan.backend, self._plan.stand_in is not None, self._clock.instant()
            self._telling.take(Sample(backend, group, device, number, now, 0.0, failure=failure, simulated=simulated))

    def _offered(self) -> dict[str, _Schedule]:
        """Return the schedules of the groups that the backend has."""
        return {group: entry for group, entry in self._schedules.items() if group in self.groups}

    def _missable(self) -> dict[str, _Schedule]:
        """Return the schedules whose rounds can be reported as missed: none before the first start."""
        return self._offered() if self.devices else {}
