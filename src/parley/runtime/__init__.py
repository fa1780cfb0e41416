"""The runtime: loads conversations, runs their turns, and sends new entries to their readers."""

__all__: list[str] = []
