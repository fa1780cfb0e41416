"""The stores for conversations: in memory, or in one SQLite database that all processes of a home share."""
