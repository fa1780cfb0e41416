"""Model providers that reply as the test says."""

__all__: list[str] = []
