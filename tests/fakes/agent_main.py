"""The agent of a node of fake devices: the file that stands for their kernel's log counts as the kernel's own."""

from __future__ import annotations

import argparse
import sys

from nodevet.agent.commands import agent

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    agent.configure(parser)
    sys.exit(agent.run(parser.parse_args(sys.argv[2:]), stands_for_kernel=True))
