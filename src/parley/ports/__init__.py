"""Small Protocols: the interfaces that the core needs from adapters, each with its errors."""
