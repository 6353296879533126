"""The agent's side of SLURM: the thread that reads and drains, its stored state, and the decisions of prologs."""
