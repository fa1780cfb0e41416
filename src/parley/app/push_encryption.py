"""The cryptography of Web Push: encrypted messages (RFC 8291) and signatures of the sender (RFC 8292).

The package `cryptography` is imported when a function is called, because it is optional and few servers use it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["SenderKey", "decode_base64url", "encode_base64url", "encrypted", "is_public_key"]

CURVE_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256."""
RECORD_BYTES: Final = 4096
VALID_SECONDS: Final = 12 * 3600
"""The time, in seconds, for which a signature is valid. Push services accept at most 24 hours."""

_KEY_LABEL: Final = b"Web Push sender key"


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Return the bytes that `text` encodes as base64url, with or without padding.

    Raises:
        ValueError: the text is not base64url.
    """
    return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)


class SenderKey:
    """The key with which a server signs its requests to push services (VAPID).

    The key is derived from the key of the home, so that no other secret has to be stored. Servers with the same key
    of the home have the same sender key. Browsers bind a subscription to the sender key.
    """

    def __init__(self, key: bytes) -> None:
        """Derive the sender key from `key`, the secret key of the home."""
        from cryptography.hazmat.primitives.asymmetric import ec

        digest = hmac.new(key, _KEY_LABEL, hashlib.sha512).digest()
        number = int.from_bytes(digest, "big") % (CURVE_ORDER - 1) + 1
        self._private = ec.derive_private_key(number, ec.SECP256R1())
        self.public: Final = encode_base64url(_public_bytes(self._private))
        """The public key, as an uncompressed point in base64url."""

    def authorization(self, audience: str, contact: str, now: float) -> str:
        """Return the value of the header `Authorization` for the push service with the origin `audience`.

        `contact` is a URL through which the operator of the push service can reach the operator of this server.
        `now` is the current time, in seconds since the epoch.
        """
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        claims = {"aud": audience, "exp": int(now) + VALID_SECONDS, "sub": contact}
        signed = f"{_json_part({'typ': 'JWT', 'alg': 'ES256'})}.{_json_part(claims)}"
        r, s = decode_dss_signature(self._private.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        signature = encode_base64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return f"vapid t={signed}.{signature}, k={self.public}"


def is_public_key(point: bytes) -> bool:
    """Return whether `point` is the encoding of an uncompressed point on the curve P-256."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except ValueError:
        return False
    return len(point) == 65


def encrypted(message: bytes, *, receiver: bytes, secret: bytes) -> bytes:
    """Return `message`, encrypted for one browser with the content encoding `aes128gcm`.

    `receiver` is the public key of the browser, and `secret` is its authentication secret.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    own = ec.generate_private_key(ec.SECP256R1())
    sender, salt = _public_bytes(own), os.urandom(16)
    shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), receiver))
    material = _derive(secret, shared, b"WebPush: info\0" + receiver + sender, 32)
    content_key = _derive(salt, material, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derive(salt, material, b"Content-Encoding: nonce\0", 12)
    header = salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(sender)]) + sender
    return header + AESGCM(content_key).encrypt(nonce, message + b"\x02", None)


def _derive(salt: bytes, material: bytes, info: bytes, length: int) -> bytes:
    """Return a key of `length` bytes, at most 32, that HKDF-SHA-256 derives from the other arguments."""
    extracted = hmac.new(salt, material, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()[:length]


def _public_bytes(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _json_part(value: dict[str, object]) -> str:
    return encode_base64url(json.dumps(value, separators=(",", ":")).encode())
