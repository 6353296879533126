"""Text for people on a terminal, and exit codes."""
