"""Helper modules for all packages. These modules import only the standard library."""
