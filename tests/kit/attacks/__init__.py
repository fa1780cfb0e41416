"""What a hostile command tries, and the ground on which it tries it.

The modules named for what they attack (`files`, `metadata`, `network`, ...) run inside the command:
they know only the standard library. `ground` is the test's side.
"""

__all__: list[str] = []
