"""One round without an agent."""
