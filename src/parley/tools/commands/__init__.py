"""Runs commands: determines their environment, starts them, and kills the processes that they leave behind."""

__all__: list[str] = []
