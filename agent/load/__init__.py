"""Load on this node: who may put it there and when, the agent's own probe, and the processes that do it."""
