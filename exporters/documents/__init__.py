"""Public JSON documents and their schema."""
