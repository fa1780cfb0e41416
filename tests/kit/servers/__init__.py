"""Servers, peers and stores under test, as processes and in this process."""

__all__: list[str] = []
