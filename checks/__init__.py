"""What is true about a node, and what it means."""
