"""The benchmark of Parley and its peers. `python -m bench` runs it; docs/benchmarks.md describes it."""
