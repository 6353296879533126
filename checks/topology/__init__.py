"""The matrix of links between accelerators."""
