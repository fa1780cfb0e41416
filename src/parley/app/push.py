"""Notifies browsers by Web Push when a conversation of this process begins to wait for a person, has failed or has
finished.

A message contains only the id of the conversation, and is encrypted for the browser. Messages are sent in the
background, only over https, and only to the push services of common browsers and to those that the settings allow.
Turns and clients are not affected if a message cannot be sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from parley.app.deliveries import Deliveries
from parley.app.push_encryption import SenderKey, decode_base64url, encode_base64url, encrypted, is_public_key
from parley.common.limited_log import LimitedLog
from parley.config.checks import is_host_name
from parley.config.types import ServeSettings
from parley.errors import ModelError
from parley.models.http import Http
from parley.ports.clock import Clock
from parley.server.context import Principal, Role
from parley.server.http.errors import PushRefused, SignInNotStored
from parley.server.http.sign_ins import SignIns
from parley.wire.ids import ConversationId
from parley.wire.tools import AttentionState

__all__ = ["PushSender"]

log = logging.getLogger(__name__)

KNOWN_HOSTS: Final = (
    "fcm.googleapis.com",
    "android.googleapis.com",
    "updates.push.services.mozilla.com",
    "web.push.apple.com",
)
"""The host names of the push services that common browsers use."""
KNOWN_DOMAINS: Final = (".push.services.mozilla.com", ".push.apple.com", ".notify.windows.com")
"""The domains in which every host is a push service that common browsers use."""
MAX_UNDELIVERED: Final = 1000
ATTEMPT_SECONDS: Final = 10.0
"""The timeout, in seconds, for the response from a push service."""
LIFE_SECONDS: Final = 24 * 3600
"""The time, in seconds, for which a push service keeps a message for a browser that is not connected."""
AUTH_BYTES: Final = 16
MAX_URL_CHARACTERS: Final = 2048
GONE: Final = frozenset({403, 404, 410})
"""The HTTP statuses that mean that a push subscription has ended or belongs to another sender key."""
REFUSED: Final = frozenset({400, 401, 413})
"""The HTTP statuses that mean that a push service has refused a request permanently, so that a retry is useless."""
NO_CONTACT: Final = "https://localhost"
"""The contact URL of a server that has no public https URL. Some push services require a contact URL."""


class _Keys(Struct, frozen=True):
    p256dh: str
    auth: str


class _Subscription(Struct, frozen=True):
    """The push subscription of a browser, in the form in which the page sends it and the server stores it."""

    endpoint: str
    keys: _Keys
    events: tuple[AttentionState, ...] = ("waiting", "failed", "finished")
    """The conversation states that trigger a message to the browser."""


_decoder: Final = msgspec.json.Decoder(_Subscription)


class PushSender:
    """Notifies subscribed browsers about conversations. When the state of a conversation changes, a push message is
    sent to each browser that has subscribed to the new state and may see the conversation. A newer state replaces
    an older state that was not delivered yet.
    """

    def __init__(
        self,
        sign_ins: SignIns,
        key: bytes,
        load: Callable[[], ServeSettings],
        http: Http,
        clock: Clock,
        environ: Mapping[str, str],
    ) -> None:
        """Create the sender. `key` is the key of the home. `load` returns the current settings. `environ` holds the
        environment variables that select a proxy.
        """
        self._sign_ins, self._key, self._load = sign_ins, key, load
        self._http, self._clock, self._environ = http, clock, environ
        self._sender: asyncio.Future[SenderKey | None] | None = None
        self.deliveries = Deliveries("push", self._attempt, clock, LimitedLog(log), max_waiting=MAX_UNDELIVERED)
        """The push messages that have not been delivered yet, keyed by sign-in and conversation."""

    async def public_key(self) -> str | None:
        """Return the public key to which browsers bind their subscriptions; None if Web Push is not installed."""
        sender = await self._sender_key()
        return None if sender is None else sender.public

    async def checked(self, body: bytes) -> bytes:
        """Check the JSON of a subscription (`body`), and return the JSON that is stored.

        Raises:
            PushRefused: the subscription is invalid, its push service is not allowed, or Web Push is not installed.
        """
        if await self._sender_key() is None:
            raise PushRefused("this server cannot send push messages; it needs the extra `push`")
        try:
            subscription = _decoder.decode(body)
        except msgspec.DecodeError:
            raise PushRefused("the body is not a push subscription") from None
        if not self._is_known(subscription.endpoint):
            raise PushRefused("its push service is unknown; add the host to `serve.push_hosts` to allow it")
        try:
            point, secret = decode_base64url(subscription.keys.p256dh), decode_base64url(subscription.keys.auth)
        except ValueError:
            raise PushRefused("its keys are not base64url") from None
        if len(secret) != AUTH_BYTES or not is_public_key(point):
            raise PushRefused("its keys are invalid")
        return msgspec.json.encode(subscription)

    def notify(self, conversation_id: ConversationId, state: AttentionState) -> None:
        """Notify the subscribed browsers about the state of a conversation. This method returns immediately and
        never raises an error.
        """
        try:
            for principal, stored in self._sign_ins.subscriptions():
                if state in _decoder.decode(stored).events and _concerns(principal, conversation_id, state):
                    self.deliveries.put((principal.sign_in, conversation_id), state)
        except Exception:  # the error is a bug, which must not affect conversations
            log.exception("browsers are not notified")

    async def close(self, *, seconds: float) -> None:
        """Wait at most `seconds` until the attempts in progress have ended, and discard all other messages."""
        await self.deliveries.close(seconds=seconds)

    async def _sender_key(self) -> SenderKey | None:
        """Return the key with which the server signs push messages; None if the optional package `cryptography` is
        not installed. The first call imports the package in a thread.
        """
        if self._sender is None:
            self._sender = asyncio.ensure_future(asyncio.to_thread(_sender_key, self._key))
        return await asyncio.shield(self._sender)

    def _is_known(self, endpoint: str) -> bool:
        """Return whether messages may be sent to the URL `endpoint`: an https URL of a push service that common
        browsers use, or of a push service that the settings allow.
        """
        if len(endpoint) > MAX_URL_CHARACTERS or not endpoint.isascii() or not endpoint.isprintable():
            return False
        try:
            parts = urlsplit(endpoint)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if (
            parts.scheme != "https"
            or not is_host_name(host)
            or parts.netloc not in (host, f"{host}:{port}")
            or "\\" in endpoint
        ):
            return False
        if parts.netloc in self._load().push_hosts:
            return True
        return port is None and (host in KNOWN_HOSTS or host.endswith(KNOWN_DOMAINS))

    async def _attempt(self, key: tuple[str, ConversationId], state: AttentionState) -> str | None:
        """Try once to notify a browser about the state of a conversation. `key` consists of the id of the browser's
        sign-in and the id of the conversation.

        Return None if no retry is needed: the push service accepted the message, a retry would be refused too, or
        the subscription no longer exists. Otherwise return a description of the problem.
        """
        sign_in, conversation_id = key
        subscriptions = {principal.sign_in: (principal, push) for principal, push in self._sign_ins.subscriptions()}
        sender = await self._sender_key()
        if sign_in not in subscriptions or sender is None:
            return None
        principal, stored = subscriptions[sign_in]
        subscription = _decoder.decode(stored)
        if not self._is_known(subscription.endpoint):  # the setting has changed since the subscription was stored
            return None
        try:
            status = await self._post(subscription, sender, conversation_id, state)
        except ModelError as error:
            return type(error).__name__  # the text must not contain the URL, which is a secret of the browser
        except (OSError, TimeoutError):
            return "no response in time"
        except Exception as error:  # the error is a bug, which must not affect conversations
            log.exception("a push message cannot be sent")
            return type(error).__name__
        if status in GONE:
            log.info("a push subscription has ended, with status %d", status)
            try:
                await self._sign_ins.subscribe(principal, None)
            except SignInNotStored as error:
                log.warning("a push subscription that has ended cannot be removed: %s", error)
            return None
        if 200 <= status < 300:
            return None
        if status in REFUSED:
            log.warning("a push service refused a message with status %d", status)
            return None
        return f"status {status}"

    async def _post(
        self, subscription: _Subscription, sender: SenderKey, conversation_id: ConversationId, state: AttentionState
    ) -> int:
        """Send the encrypted id of a conversation to the push service of a browser, and return the HTTP status of
        the response. `state` determines the urgency of the message.

        Raises:
            ModelError, OSError: the push service cannot be reached.
            TimeoutError: the push service has not responded within `ATTEMPT_SECONDS`.
        """
        body = encrypted(
            conversation_id.encode(),
            receiver=decode_base64url(subscription.keys.p256dh),
            secret=decode_base64url(subscription.keys.auth),
        )
        public_url = self._load().public_url or ""
        contact = public_url if public_url.startswith("https:") else NO_CONTACT
        audience = f"https://{urlsplit(subscription.endpoint).netloc}"
        headers = {
            "authorization": sender.authorization(audience, contact, self._clock.now()),
            "content-type": "application/octet-stream",
            "content-encoding": "aes128gcm",
            "ttl": str(LIFE_SECONDS),
            "urgency": "high" if state == "waiting" else "normal",
            # A push service keeps only the newest message with a topic for a browser that is not connected.
            "topic": encode_base64url(hashlib.sha256(conversation_id.encode()).digest())[:32],
        }
        async with asyncio.timeout(ATTEMPT_SECONDS):
            reply = await self._http.post(
                subscription.endpoint,
                headers=headers,
                body=body,
                idle_seconds=2 * ATTEMPT_SECONDS,
                environ=self._environ,
            )
        reply.close()
        return reply.status


def _sender_key(key: bytes) -> SenderKey | None:
    try:
        return SenderKey(key)
    except ImportError:
        return None
    except Exception:  # the error is a bug; people must be able to sign in without push messages
        log.exception("push messages cannot be sent")
        return None


def _concerns(principal: Principal, conversation_id: ConversationId, state: AttentionState) -> bool:
    """Return whether a principal may be notified that a conversation is in the state `state`. The principal must be
    allowed to see the conversation and, if the conversation waits for an approval, to answer the approval.
    """
    if principal.conversation not in (None, conversation_id):
        return False
    return state != "waiting" or principal.role >= Role.APPROVER
