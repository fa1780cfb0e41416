"""Measures Parley beside its peers, all in one run: `python -m bench` (docs/benchmarks.md)."""
