"""The agent's side of SLURM: the thread that drains, the memory of its rules, and the decisions of prologs."""
