"""Files and homes: export, import, backup, repair and garbage collection. No turn runs here."""

__all__: list[str] = []
