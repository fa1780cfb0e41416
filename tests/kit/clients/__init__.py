"""Clients of a server: what they send, and the messages that they expect."""

__all__: list[str] = []
