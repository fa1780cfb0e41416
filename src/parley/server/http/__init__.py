"""Streamable HTTP: one endpoint, sessions, and streams."""
