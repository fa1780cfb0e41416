"""Helpers for all packages. They import only the standard library."""
