"""Notifies the webhook in the settings when a conversation of this process begins to wait for a person, has failed
or has finished.

A notification contains none of the conversation's content. Notifications are sent in the background. Turns
and clients do not wait for notifications, and are not affected if a notification cannot be sent. The headers follow
the Standard Webhooks specification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from parley.app.deliveries import Deliveries
from parley.common.limited_log import LimitedLog
from parley.config.types import Webhook
from parley.errors import ConfigError, ModelError
from parley.models.http import Http
from parley.ports.clock import Clock
from parley.server.times import iso
from parley.wire.ids import ConversationId
from parley.wire.tools import AttentionState

__all__ = ["WebhookSender", "signature"]

log = logging.getLogger(__name__)

MAX_CONVERSATIONS: Final = 1000
"""The maximum number of conversations with an undelivered notification."""
ATTEMPT_SECONDS: Final = 10.0
"""The timeout, in seconds, for the response from the receiver of the webhook."""


class _Notification(Struct, frozen=True, kw_only=True):
    """The body of a webhook request."""

    delivery_id: str
    conversation_id: ConversationId
    state: AttentionState
    timestamp: str


def signature(key: bytes, delivery_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `webhook-signature`, with which the receiver verifies a notification: the
    signature of the other arguments with `key`.
    """
    import base64  # imported here: few homes have a webhook
    import hashlib
    import hmac

    digest = hmac.new(key, f"{delivery_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class WebhookSender:
    """Sends the newest notification of each conversation.

    The sender retries if the receiver does not accept a notification.
    """

    def __init__(
        self, load: Callable[[], Webhook | None], http: Http, clock: Clock, environ: Mapping[str, str]
    ) -> None:
        """Create the sender.

        `load` returns the webhook in the current settings; None if they contain no webhook. `environ` holds the
        environment variables that select a proxy.
        """
        self._load, self._http, self._clock, self._environ = load, http, clock, environ
        self._log = LimitedLog(log)
        self.deliveries = Deliveries("webhook", self._attempt, clock, self._log, max_waiting=MAX_CONVERSATIONS)
        """The undelivered notifications, keyed by conversation."""

    def notify(self, conversation_id: ConversationId, state: AttentionState) -> None:
        """Notify the receiver about the state of a conversation. This method returns immediately and never raises
        an error.
        """
        webhook = self._webhook()
        if webhook is None or state not in webhook.events:
            return
        notification = _Notification(
            delivery_id=f"msg_{uuid4().hex}",
            conversation_id=conversation_id,
            state=state,
            timestamp=iso(self._clock.now()),
        )
        self.deliveries.put(conversation_id, notification)

    async def close(self, *, seconds: float) -> None:
        """Wait at most `seconds` until the attempts in progress have ended, and discard all other notifications."""
        await self.deliveries.close(seconds=seconds)

    def _webhook(self) -> Webhook | None:
        try:
            return self._load()
        except ConfigError as error:
            self._log.warning("the webhook is not notified: %s", error)
        except Exception:  # the error is a bug, which must not affect conversations
            log.exception("the webhook is not notified")
        return None

    async def _attempt(self, conversation_id: ConversationId, due: _Notification) -> str | None:
        """Try once to send the notification `due`.

        Return None if the receiver accepted the notification, or if the settings no longer contain a webhook.
        Otherwise return a description of the problem.
        """
        webhook = self._webhook()
        if webhook is None:
            return None
        body, sent_at = msgspec.json.encode(due), str(int(self._clock.now()))
        headers = {
            "content-type": "application/json",
            "webhook-id": due.delivery_id,
            "webhook-timestamp": sent_at,
            "webhook-signature": signature(webhook.key, due.delivery_id, sent_at, body),
        }
        # A request over http never leaves this computer, so it needs no proxy.
        proxies = self._environ if webhook.url.lower().startswith("https:") else {}
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                reply = await self._http.post(
                    webhook.url, headers=headers, body=body, idle_seconds=2 * ATTEMPT_SECONDS, environ=proxies
                )
        except ModelError as error:
            # The text must not contain the URL, whose path may be a secret.
            return str(getattr(error, "detail", "no response"))
        except (OSError, TimeoutError) as error:
            return str(error) or "no response in time"
        except Exception as error:  # the error is a bug, which must not affect conversations
            log.exception("a webhook notification cannot be sent")
            return type(error).__name__
        reply.close()
        return None if 200 <= reply.status < 300 else f"status {reply.status}"
