"""How a verdict leaves the node."""
