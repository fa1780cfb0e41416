"""The store of a home: one SQLite database that all processes of the home share."""
