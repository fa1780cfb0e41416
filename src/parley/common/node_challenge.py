"""Proves that two nodes have the same token, without sending the token.

The node that connects sends a random number. The other node answers with a random number of its own, the version of
the link, and a proof. The first node checks the proof, and connects again with a proof of its own. This proof is
valid only once.

Each proof is an HMAC over both numbers, the version, and the address of the node that was called. This address is
the one that the called node has announced, so a server at another address cannot forward the proofs.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final, Literal, NamedTuple

__all__ = ["SCHEME", "Challenge", "new_nonce", "read_fields", "write_fields"]

SCHEME: Final = "Parley-Node"
"""The authentication scheme in the headers `Authorization` and `WWW-Authenticate`."""

_MAX_CHARACTERS: Final = 500


class Challenge(NamedTuple):
    """The data that both proofs of one connection cover."""

    url: str
    """The address of the node that is called."""
    version: str
    caller: str
    """The random number of the node that connects."""
    called: str
    """The random number of the node that is called."""

    def proof(self, token: str, side: Literal["caller", "called"]) -> str:
        """Return the proof, in the form in which it is sent, that the node on the side `side` of the connection has
        the token.
        """
        fields = (side, self.url.rstrip("/"), self.version, self.caller, self.called)
        key = hmac.digest(token.encode(), b"link of nodes", "sha256")
        return hmac.digest(key, _bytes("\n".join(fields)), "sha256").hex()

    def is_proof(self, token: str, side: Literal["caller", "called"], given: str) -> bool:
        return hmac.compare_digest(_bytes(self.proof(token, side)), _bytes(given))


def _bytes(text: str) -> bytes:
    """Encode a text as bytes. The text may come from a header that contained invalid bytes."""
    return text.encode(errors="surrogateescape")


def new_nonce() -> str:
    """Return a random number that has never been used."""
    return secrets.token_hex(32)


def write_fields(**fields: str) -> str:
    """Return the value of an authentication header: the scheme `Parley-Node`, followed by the given fields."""
    return f"{SCHEME} " + ", ".join(f"{name}={value}" for name, value in fields.items())


def read_fields(value: str) -> dict[str, str]:
    """Return the fields in the value of an authentication header, by name.

    The result is empty if the value has another scheme or is too long.
    """
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != SCHEME.lower() or len(value) > _MAX_CHARACTERS:
        return {}
    pairs = (one.strip().partition("=") for one in rest.split(","))
    return {name: field for name, _, field in pairs}
