"""Ends readers whose clock a test moves by hand."""

from __future__ import annotations

import selectors
import time

from fakes.clocks import SteppedClock

from nodevet.agent.readers.supervisor import Supervisor

__all__ = ["stop_readers"]

REAL_SECONDS = 20.0


def stop_readers(supervisor: Supervisor, selector: selectors.BaseSelector, clock: SteppedClock) -> None:
    """Stop the readers of *supervisor*, in real time, and close *selector*."""
    supervisor.stop()
    end = time.monotonic() + REAL_SECONDS
    while not supervisor.at_rest and time.monotonic() < end:
        supervisor.tick()
        for key, mask in selector.select(0.02):
            supervisor.handle(key, mask)
        clock.advance(0.02)
    selector.close()
