"""Ways in and out: a transport moves frames and knows nothing of what they say."""

__all__: list[str] = []
