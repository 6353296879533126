"""A node that does not exist: its files, its probes, and what keeps it apart from real ones."""
