"""A node that does not exist: its profile, its scenario and its backend."""
