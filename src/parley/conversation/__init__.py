"""The domain: a conversation as a log. Pure and synchronous; no clock, no event loop, no files."""
