"""The runtime, which owns conversations, runs their turns and wakes their readers."""

__all__: list[str] = []
