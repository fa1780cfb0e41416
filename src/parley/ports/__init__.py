"""Protocol classes for the interfaces that the core needs from adapters, with the errors of each interface."""
