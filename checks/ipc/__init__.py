"""How a parent and its child processes talk, and what the last words of one that crashed mean."""
