"""The protocol between a parent and its child processes, and the diagnosis of a crashed child's last output."""
