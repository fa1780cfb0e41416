"""The runtime: loads conversations, runs their turns, and sends new entries to the readers of the conversations."""

__all__: list[str] = []
