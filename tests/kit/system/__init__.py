"""What a test needs of the computer: commands, kernels, mounts, memory, CPU time."""

__all__: list[str] = []
