"""Files, locks, processes, signals and threads of this machine."""
