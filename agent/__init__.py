"""What runs: command line, configuration, engine, supervisor, store and daemon."""

__version__ = "0.1.0"
