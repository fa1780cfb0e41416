"""Conversations by hand: out of a home, into one, and what a home need not keep any longer. No turn is run here."""

__all__: list[str] = []
