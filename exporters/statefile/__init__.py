"""The state file: its writer, and the reader that the prolog uses."""
