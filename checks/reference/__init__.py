"""Facts as data, each with its source."""
