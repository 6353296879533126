"""A simulated node: its profile, its scenario and its backend."""
