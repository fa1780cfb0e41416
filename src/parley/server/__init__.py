"""Turns requests of clients into calls of the runtime, and sends answers and events back."""

__all__: list[str] = []
