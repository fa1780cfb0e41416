"""Commands: which environment they get, how they are run, and how nothing of them is left behind."""

__all__: list[str] = []
