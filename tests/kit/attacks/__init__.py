"""Attacks of a hostile command on the sandbox, and the objects that it attacks.

The modules named for their target (`files`, `metadata`, `network`, ...) run inside the command and use the standard
library alone. `ground` runs in the test.
"""

__all__: list[str] = []
