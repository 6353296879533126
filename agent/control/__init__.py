"""The agent's Unix socket: server and client."""
