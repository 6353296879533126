"""Reasons and marks that nodevet writes into SLURM, and their rules."""
