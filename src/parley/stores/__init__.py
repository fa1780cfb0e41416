"""The stores for conversations: in memory, in one SQLite database that all processes of a home share, or in a
PostgreSQL database that several computers share.
"""
