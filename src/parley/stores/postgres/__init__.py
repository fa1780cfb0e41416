"""The PostgreSQL store, for several computers that share their conversations."""
