"""The configuration: its settings, how it is read, and the plan of the readers."""
