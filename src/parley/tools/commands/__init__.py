"""Runs commands: chooses their environment, starts them, and kills everything they leave."""

__all__: list[str] = []
