"""Kernel text to events."""
