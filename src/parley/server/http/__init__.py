"""Serves clients over Streamable HTTP: the endpoints, the sessions of clients, and the streams of messages."""
