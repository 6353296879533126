"""Backends, which read devices: one file for each vendor, and the main of the reader child."""
