"""Handles client requests by means of the runtime, and sends answers and events to clients."""

__all__: list[str] = []
