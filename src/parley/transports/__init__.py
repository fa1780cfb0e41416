"""Transports, which move frames between processes without interpreting them."""

__all__: list[str] = []
