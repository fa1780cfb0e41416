"""Small Protocols: what the core needs from the outside, each with its failures named."""
