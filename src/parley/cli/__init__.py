"""The command line of Parley, with one module for each command."""

__all__: list[str] = []
