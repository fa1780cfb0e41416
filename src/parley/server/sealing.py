"""Signs strings that the server sends to a client, and verifies these strings when the client sends them back."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

__all__ = ["Sealer"]

_MAC_BYTES: Final = 16


class Sealer:
    """Signs strings for one purpose, and verifies them when they come back.

    A string that was sealed with another key or for another purpose is not accepted.
    """

    def __init__(self, key: bytes, purpose: bytes) -> None:
        self._key = hmac.digest(key, purpose, "sha256")

    def seal(self, content: bytes, *, context: str = "") -> str:
        """Return `content` and its signature, encoded as a string of URL-safe characters.

        The string can be opened only with the same `context`. The content is signed, but not encrypted.
        """
        return _encoded(self._mac(content, context) + content)

    def open(self, text: str, *, context: str = "") -> bytes | None:
        """Return the content of a sealed string; None if the string was not sealed with this key, purpose and
        context.
        """
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if _encoded(sealed) != text or not hmac.compare_digest(mac, self._mac(content, context)):
            return None
        return content

    def _mac(self, content: bytes, context: str) -> bytes:
        bound = context.encode()
        return hmac.digest(self._key, b"%d:%b%b" % (len(bound), bound, content), "sha256")[:_MAC_BYTES]


def _encoded(sealed: bytes) -> str:
    """Encode sealed bytes as a string. Several Base64 strings can decode to the same bytes. A received string is
    accepted only if it is equal to this encoding.
    """
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()
