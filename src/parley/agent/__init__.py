"""The agent: one turn, from the user's words to the model's last."""

__all__: list[str] = []
