"""Runs commands: chooses their environment, starts them, and kills the processes that they leave."""

__all__: list[str] = []
