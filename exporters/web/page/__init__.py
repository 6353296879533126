"""The status page: what the node is found to be, for a person with a browser. No script, nothing from outside."""
