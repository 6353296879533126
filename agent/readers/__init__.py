"""The readers of the devices: one child process per backend, kept alive and within its deadlines."""
