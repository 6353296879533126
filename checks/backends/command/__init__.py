"""Accelerators that a command of the site reads."""
