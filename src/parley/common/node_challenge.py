"""Proves that two nodes have the same token, without sending the token.

The calling node sends a random number. The called node responds with its own random number, the version of the
protocol between nodes, and a proof that it has the token. The calling node checks this proof, and connects again
with its own proof, which is valid only once.

Each proof is an HMAC over both random numbers, the version, and the URL that the called node has announced. Because
the HMAC includes the URL, a server with another URL cannot forward the proofs.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final, Literal, NamedTuple

__all__ = ["SCHEME", "Challenge", "new_nonce", "read_fields", "write_fields"]

SCHEME: Final = "Parley-Node"
"""The scheme in the headers `Authorization` and `WWW-Authenticate` of requests and responses between nodes."""

_MAX_CHARACTERS: Final = 500


class Challenge(NamedTuple):
    """The data from which two nodes compute their proofs for one connection."""

    url: str
    """The announced URL of the called node."""
    version: str
    """The version of the protocol between nodes."""
    caller: str
    """The random number of the calling node."""
    called: str
    """The random number of the called node."""

    def proof(self, token: str, side: Literal["caller", "called"]) -> str:
        """Return the hexadecimal proof that a node has `token`. `side` is `caller` for the proof of the calling
        node, and `called` for the proof of the called node.
        """
        fields = (side, self.url.rstrip("/"), self.version, self.caller, self.called)
        key = hmac.digest(token.encode(), b"link of nodes", "sha256")
        return hmac.digest(key, _encode_with_surrogates("\n".join(fields)), "sha256").hex()

    def is_proof(self, token: str, side: Literal["caller", "called"], given: str) -> bool:
        return hmac.compare_digest(_encode_with_surrogates(self.proof(token, side)), _encode_with_surrogates(given))


def _encode_with_surrogates(text: str) -> bytes:
    """Encode `text` as UTF-8. A lone surrogate, which represents an invalid byte of a header, becomes this byte."""
    return text.encode(errors="surrogateescape")


def new_nonce() -> str:
    """Return a new random number of 32 bytes, in hexadecimal form."""
    return secrets.token_hex(32)


def write_fields(**fields: str) -> str:
    """Return the value of an authentication header: the scheme `Parley-Node`, followed by the given fields."""
    return f"{SCHEME} " + ", ".join(f"{name}={value}" for name, value in fields.items())


def read_fields(value: str) -> dict[str, str]:
    """Return the fields in `value`, the value of an authentication header, keyed by name.

    The result is empty if the value has a scheme other than `Parley-Node` or is too long.
    """
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != SCHEME.lower() or len(value) > _MAX_CHARACTERS:
        return {}
    pairs = (one.strip().partition("=") for one in rest.split(","))
    return {name: field for name, _, field in pairs}
