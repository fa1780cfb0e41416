"""Model providers that answer as the test says."""

__all__: list[str] = []
