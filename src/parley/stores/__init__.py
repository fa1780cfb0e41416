"""The implementations of `Store` (`ports/store.py`): in memory, in an SQLite database that all processes of a home
share, and in a PostgreSQL database that several computers share.
"""
