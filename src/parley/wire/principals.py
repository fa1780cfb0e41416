"""The names of principals in logs, in events and in messages between processes."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Struct, UnsetType

__all__ = ["LOCAL", "PrincipalRef", "name_of"]


class PrincipalRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a principal. The reference stays unique even after the principal's token is revoked."""

    name: str
    token_id: str = ""
    """The id of the principal's token; empty for local clients. The id distinguishes the token from revoked tokens
    with the same name.
    """


LOCAL: Final = PrincipalRef(name="local")
"""The principal for all clients over stdio and Unix sockets: the user who runs the server. No token has
this name.
"""


def name_of(principal: PrincipalRef | None) -> str | UnsetType:
    """Return the name of a principal for an event; UNSET if there is no principal."""
    return UNSET if principal is None else principal.name
