"""Operations on files and home directories: export, import, backup, repair and garbage collection. These modules
run no turns.
"""

__all__: list[str] = []
