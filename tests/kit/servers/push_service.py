"""A push service on the loopback, and a browser that subscribes to it."""

from __future__ import annotations

import base64
import json
import os
import ssl
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kit.servers.http_receiver import HttpReceiver
from kit.system.certificates import make_certificate

__all__ = ["PushService", "SubscribedBrowser", "claims_of", "decoded", "encoded"]


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class PushService(HttpReceiver):
    """A push service with TLS: `async with PushService(directory) as service`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(accepted=201)
        self._directory = directory

    async def tls(self) -> ssl.SSLContext:
        self.certificate, key = await make_certificate(self._directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        return context

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"


class SubscribedBrowser:
    """The keys of a browser that has subscribed to push messages."""

    def __init__(self, endpoint: str, *, private: int | None = None, secret: bytes | None = None) -> None:
        self.endpoint = endpoint
        self._private = (
            ec.generate_private_key(ec.SECP256R1())
            if private is None
            else ec.derive_private_key(private, ec.SECP256R1())
        )
        self.secret = os.urandom(16) if secret is None else secret
        self.public = self._private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def subscription(self, **more: object) -> dict[str, Any]:
        """Return the subscription as `PushSubscription.toJSON` does, with `more` members."""
        keys = {"p256dh": encoded(self.public), "auth": encoded(self.secret)}
        return {"endpoint": self.endpoint, "expirationTime": None, "keys": keys, **more}

    def decrypted(self, body: bytes) -> bytes:
        """Return the content of a message."""
        salt, length = body[:16], body[20]
        sender, sealed = body[21 : 21 + length], body[21 + length :]
        shared = self._private.exchange(
            ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        )
        material = _derived(self.secret, shared, b"WebPush: info\0" + self.public + sender, 32)
        content_key = _derived(salt, material, b"Content-Encoding: aes128gcm\0", 16)
        nonce = _derived(salt, material, b"Content-Encoding: nonce\0", 12)
        padded = AESGCM(content_key).decrypt(nonce, sealed, None)
        content, _, padding = padded.rpartition(b"\x02")
        assert not padding.strip(b"\0")
        return content


def claims_of(authorization: str) -> tuple[dict[str, Any], str]:
    """Check the signature of a sender, and return its claims and its public key."""
    scheme, _, parameters = authorization.partition(" ")
    assert scheme == "vapid"
    values = dict(part.strip().split("=", 1) for part in parameters.split(","))
    signed, _, signature = values["t"].rpartition(".")
    raw = decoded(signature)
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(values["k"]))
    numbers = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    try:
        public.verify(numbers, signed.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise AssertionError("the signature of the sender is wrong") from None
    header, claims = (json.loads(decoded(part)) for part in signed.split("."))
    assert header == {"typ": "JWT", "alg": "ES256"}
    return claims, values["k"]


def _derived(salt: bytes, material: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(material)
