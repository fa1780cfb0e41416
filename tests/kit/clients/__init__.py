"""Clients of a server: the requests that they send, and the messages that they expect."""

__all__: list[str] = []
