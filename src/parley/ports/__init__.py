"""The interfaces that the core needs from adapters, as protocol classes, with the errors of each interface."""
