"""Where logs are kept: in memory, or in one SQLite database for all processes of a home."""
