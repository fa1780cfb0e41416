"""Handles the requests of clients with the runtime, and sends responses and events to clients."""

__all__: list[str] = []
