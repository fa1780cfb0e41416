"""The store in a PostgreSQL database, with which several computers share their conversations."""
