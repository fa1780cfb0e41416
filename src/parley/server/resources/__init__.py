"""MCP resources: conversations that a client lists, reads and subscribes to."""
