"""What SLURM is told of a node, and by which rules."""
