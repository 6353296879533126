"""What a part of the agent is to its loop: a service."""
