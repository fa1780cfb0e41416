"""Runs commands: determines their environment, starts them, and kills the remaining processes of ended commands."""

__all__: list[str] = []
