"""The store in a PostgreSQL database that several computers share."""
