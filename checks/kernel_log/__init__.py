"""From lines of the kernel log to events."""
