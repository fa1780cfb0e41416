"""A receiver of webhook notifications on the loopback."""

from __future__ import annotations

from kit.servers.http_receiver import HttpReceiver

__all__ = ["WebhookReceiver"]


class WebhookReceiver(HttpReceiver):
    """A receiver: `async with WebhookReceiver() as receiver`."""

    def __init__(self) -> None:
        super().__init__(accepted=204)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
