"""The messages of the protocol as plain frozen structs: no behaviour, no event loop, no files."""
