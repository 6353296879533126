"""The agent's side of SLURM: the thread that drains, the rules' memory, and what prologs decided."""
