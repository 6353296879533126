"""The protocol of a service, which every part of the agent's loop implements."""
