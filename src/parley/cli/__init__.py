"""The command line, one module per subcommand."""

__all__: list[str] = []
