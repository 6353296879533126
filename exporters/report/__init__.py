"""The report of a burn-in, as one HTML page."""
