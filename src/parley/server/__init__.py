"""A client's requests become calls of the runtime, and its answers and events go back."""

__all__: list[str] = []
