"""Runs one turn of the agent, from the user's message to the model's last response."""

__all__: list[str] = []
