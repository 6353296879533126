"""Data on disk: the database and its writer, the mirror of open findings, minute averages."""
