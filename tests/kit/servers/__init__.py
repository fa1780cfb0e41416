"""Servers, peers and stores under test, as processes and in the process of the test."""

__all__: list[str] = []
