"""The async middle: owns conversations, runs their turns, wakes their readers."""

__all__: list[str] = []
