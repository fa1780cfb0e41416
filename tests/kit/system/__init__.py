"""Operating system helpers: commands, kernels, mounts, memory, CPU time."""

__all__: list[str] = []
