"""What crosses the wire, as plain frozen structs: no behaviour, no event loop, no files."""
