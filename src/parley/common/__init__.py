"""Helpers for all packages. They import the standard library alone."""
