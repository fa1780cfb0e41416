"""What tests share, by role; README.md is the index."""

__all__: list[str] = []
