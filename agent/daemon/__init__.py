"""The daemon: its loop and its services."""
