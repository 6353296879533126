"""Load on this node: when it may run, the agent's own probe, and the child processes."""
