"""Prometheus families of a Snapshot."""
