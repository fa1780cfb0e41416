"""Protocol messages as frozen structs. The package does no I/O and needs no event loop."""
