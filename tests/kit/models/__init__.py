"""Model providers whose replies the test determines."""

__all__: list[str] = []
