"""Handles requests from clients by calling `parley.runtime`, and sends responses and events to the clients."""

__all__: list[str] = []
