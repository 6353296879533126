"""Who tells a load how hot its devices are: the agent where one runs, else readers of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import selectors
import socket
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from fakes.gpu_node import GpuNode
from fakes.screen import Screen

from nodevet.agent.load.conditions import Conditions
from nodevet.agent.load.watch import AGAIN_SECONDS, ASK_SECONDS, STALE_SECONDS, AgentWatch

PROGRAM = Path(__file__).with_name("fakes") / "scripted_burn_in.py"
PATIENCE_SECONDS = 45.0


class Agent:
    """The end of an agent that answers when the test says so."""

    def __init__(self, path: Path) -> None:
        """Listen at *path*."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._peer: socket.socket | None = None

    def asked(self) -> bytes:
        """Return the question that came."""
        if self._peer is None:
            self._peer, _ = self._listening.accept()
            self._peer.settimeout(5.0)
        return self._peer.recv(4096)

    def answer(self, text: str) -> None:
        """Answer with a line."""
        assert self._peer is not None
        self._peer.sendall(f"{text}\n".encode())

    def close(self) -> None:
        """Go away."""
        if self._peer is not None:
            self._peer.close()
        self._listening.close()


def test_the_agent_is_asked_without_a_wait(tmp_path: Path) -> None:
    """An answer is known until it is old; an agent that hangs, talks nonsense or is gone leaves empty cells."""
    now, agent = [100.0], Agent(tmp_path / "socket")
    watch = AgentWatch(tmp_path / "socket", lambda: now[0])
    with selectors.DefaultSelector() as selector:

        def turn(seconds: float = 0.0) -> None:
            now[0] += seconds
            watch.tick()
            for key, mask in selector.select(0):
                key.data(mask)

        watch.start(selector)
        turn()
        assert json.loads(agent.asked()) == {"verb": "conditions"}
        assert watch.known == {}
        agent.answer('{"conditions": {"cpu-0": {"temperature_celsius": 70.0, "throttle": ["package"]}}}')
        turn()
        assert watch.known == {"cpu-0": Conditions(temperature_celsius=70.0, throttle=("package",))}
        turn(ASK_SECONDS)
        agent.asked()
        turn(STALE_SECONDS + 1)
        assert watch.known == {}  # it hangs
        turn(AGAIN_SECONDS + 1)
        agent.close()
        turn(AGAIN_SECONDS + 1)
        turn(AGAIN_SECONDS + 1)
        assert watch.known == {}
        watch.stop()
        assert not selector.get_map()


@pytest.mark.parametrize(
    "answer", ['{"error": "no such verb", "kind": "unknown_verb"}', "{}", "nonsense", '{"conditions": 1}']
)
def test_an_agent_that_does_not_know_the_question_costs_no_load(tmp_path: Path, answer: str) -> None:
    """As one of an earlier version does."""
    agent = Agent(tmp_path / "socket")
    watch = AgentWatch(tmp_path / "socket")
    with selectors.DefaultSelector() as selector:
        watch.start(selector)
        watch.tick()
        agent.asked()
        agent.answer(answer)
        for key, mask in selector.select(5):
            key.data(mask)
        assert watch.known == {}
        assert not selector.get_map()
    agent.close()


def shown_until(ours: int, screen: Screen, count: int, words: str) -> list[str]:
    """Feed *screen* until it shows *words* in so many lines; return these."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            screen.feed(os.read(ours, 65536).decode())
            found = [line for line in screen.lines if re.search(words, line)]
            if len(found) == count:
                return found
    raise AssertionError(f"{words!r} was not shown: {screen.lines}")


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "alone"])
def test_a_load_shows_what_its_devices_are_under(tmp_path: Path, fake_nvml_library: Path, agent: bool) -> None:
    """Heat, power, clock and throttling stand in the live table, in the final one, and in the document."""
    node, gate, file = GpuNode(tmp_path, fake_nvml_library), tmp_path / "go-on", tmp_path / "burn-in.json"
    if agent:
        node.start()
    words = ["--config", str(node.configuration_file), "--state-dir", str(node.state_dir)]
    words += ["--runtime-dir", str(node.runtime_dir), "--output", str(file)]
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    script = json.dumps({"bf16": f"on:until:{gate}:finish"})
    environment = {**os.environ, **node.machine.environment, "TERM": "xterm"}
    burning = subprocess.Popen(
        [sys.executable, str(PROGRAM), script, *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=environment,
    )
    try:
        os.close(theirs)
        screen = Screen()
        rows = shown_until(ours, screen, 8, r"^gpu\d .* load .* 40 +120 1980 no ")
        assert [row.split()[0] for row in rows] == [f"gpu{slot}" for slot in range(8)]
        node.machine.update({"temperature": 91, "event_reasons": 0x20})  # hot: a software thermal slowdown
        shown_until(ours, screen, 8, r"^gpu\d .* load .* 91 +120 1980 thermal ")
        assert screen.widest < 80
        gate.touch()
        printed, _ = burning.communicate(timeout=PATIENCE_SECONDS)
    finally:
        burning.kill()
        burning.communicate()
        os.close(ours)
        node.stop()
    final = [line for line in printed.splitlines() if line.startswith("gpu")]
    assert len(final) == 8
    assert all(re.search(r" 1980 thermal +10 +0$", line) for line in final), printed
    assert max(map(len, printed.splitlines()[1:])) <= 80
    conditions = json.loads(file.read_text())["results"][0]["conditions"]
    assert conditions["temperature_celsius"] and conditions["power_watts"] and conditions["clock_hertz"]
