"""Load on this node: permission and time for it, the agent's own probe, and the child processes."""
