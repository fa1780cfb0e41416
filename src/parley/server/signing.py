"""Signs strings that the server sends to a client, and verifies these strings when the client sends them back."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

__all__ = ["Signer"]

_MAC_BYTES: Final = 16


class Signer:
    """Signs content for one purpose, such as event ids, and verifies signed content that a client sends back.

    Content that was signed with another key or for another purpose is not accepted.
    """

    def __init__(self, key: bytes, purpose: bytes) -> None:
        self._key = hmac.digest(key, purpose, "sha256")

    def sign(self, content: bytes, *, context: str = "") -> str:
        """Return `content` and its signature as a string of URL-safe Base64 characters.

        `verify` accepts the string only with the same `context`. The content is signed, but not encrypted.
        """
        return _encoded(self._mac(content, context) + content)

    def verify(self, text: str, *, context: str = "") -> bytes | None:
        """Return the content of the signed string `text`; None if it was not signed with this key, purpose and
        `context`.
        """
        try:
            signed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if _encoded(signed) != text or not hmac.compare_digest(mac, self._mac(content, context)):
            return None
        return content

    def _mac(self, content: bytes, context: str) -> bytes:
        bound = context.encode()
        return hmac.digest(self._key, b"%d:%b%b" % (len(bound), bound, content), "sha256")[:_MAC_BYTES]


def _encoded(signed: bytes) -> str:
    """Return the canonical Base64 string of the signature and content in `signed`. Other strings can decode to the
    same bytes; `verify` does not accept those strings.
    """
    return base64.urlsafe_b64encode(signed).rstrip(b"=").decode()
