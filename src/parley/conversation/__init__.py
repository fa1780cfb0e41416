"""The domain model, in which a conversation is a log.

The package is pure and synchronous: it uses no clock, no event loop and no I/O.
"""
