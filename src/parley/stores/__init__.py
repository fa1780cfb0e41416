"""Stores: a conversation's log in memory, or in one SQLite database for all processes of a home."""
