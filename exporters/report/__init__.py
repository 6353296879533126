"""A report for people: one HTML page that needs nothing else, to be read, printed and sent."""
