"""A simulated node in the agent: its files, its probes, and its separation from real nodes."""
