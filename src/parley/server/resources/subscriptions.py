"""Manages the resource subscriptions of one client, and notifies the client of changes to these resources."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from parley.errors import UnknownConversation, Unreadable
from parley.server.context import Principal, ServerContext
from parley.server.errors import RequestRefused, TooManySubscriptions, UnknownResource
from parley.server.resources.uris import address_of
from parley.server.resources.watching import CoalescedNotification, ListWatch, ResourceWatch, watch_resource
from parley.server.session import Session
from parley.wire.jsonrpc import encode, notification
from parley.wire.resources import ResourceListChanged, ResourceUpdated

__all__ = ["ResourceSubscriptions", "give_back_subscriptions", "take_subscriptions"]

log = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS: Final = 1000
"""The maximum number of resources to which one client may subscribe. The number is limited because each
subscription keeps a conversation in memory.
"""

MAX_PER_PRINCIPAL: Final = 5000
"""The maximum total number of subscriptions of all clients of one principal."""


def take_subscriptions(server: ServerContext, principal: Principal, count: int = 1) -> None:
    """Add `count` to the number of subscriptions of the principal.

    Raises:
        TooManySubscriptions: the principal would exceed the maximum number of subscriptions.
    """
    if server.subscribed[principal.key] + count > MAX_PER_PRINCIPAL:
        raise TooManySubscriptions(MAX_PER_PRINCIPAL, of_principal=True)
    server.subscribed[principal.key] += count


def give_back_subscriptions(server: ServerContext, principal: Principal, count: int = 1) -> None:
    """Subtract `count` from the number of subscriptions of the principal."""
    server.subscribed[principal.key] -= count


class ResourceSubscriptions:
    """Sends `notifications/resources/updated` and `notifications/resources/list_changed` to one client.

    All subscriptions are removed when the client leaves.
    """

    def __init__(self, session: Session, server: ServerContext) -> None:
        self._session, self._server = session, server
        self._subscribed: dict[str, tuple[CoalescedNotification, ResourceWatch | None]] = {}
        """The notification and the watch of each subscription, by URI. The watch is None while it is being created.
        """
        self._list: tuple[CoalescedNotification, ListWatch] | None = None

    async def subscribe(self, uri: str, principal: Principal) -> None:
        """From now on, notify the client whenever the resource with the URI `uri` has changed. A second
        subscription to the same URI has no effect.

        Raises:
            UnknownResource: no resource has this URI, or the principal is not allowed to see the resource.
            TooManySubscriptions: the client or the principal has reached the maximum number of subscriptions.
            StoreError: the conversation cannot be read.
        """
        address = address_of(uri)
        if uri in self._subscribed:
            return
        if len(self._subscribed) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions(MAX_SUBSCRIPTIONS)
        take_subscriptions(self._server, principal)
        self._principal = principal
        updated = self._notification(ResourceUpdated.METHOD, encode(ResourceUpdated(uri=uri)))
        self._subscribed[uri] = updated, None
        try:
            watch = await watch_resource(address, self._server.conversations, principal, updated.send)
        except UnknownConversation:
            self._remove(uri)
            raise UnknownResource(uri) from None
        except BaseException:
            self._remove(uri)
            raise
        is_subscribed = self._subscribed.get(uri) == (updated, None)
        if self._session.has_left or not is_subscribed:
            watch.close()  # the client has left or unsubscribed in the meantime
            if is_subscribed:
                self._remove(uri)
            return
        self._subscribed[uri] = updated, watch
        self._register()
        self._session.changed()

    @property
    def uris(self) -> tuple[str, ...]:
        """The URIs of the resources to which the client has subscribed."""
        return tuple(uri for uri, (_, watch) in self._subscribed.items() if watch is not None)

    @property
    def has_listed(self) -> bool:
        """True if the client has listed the resources, and is therefore notified when the list changes."""
        return self._list is not None

    async def restore(self, uris: Iterable[str], principal: Principal, *, has_listed: bool) -> None:
        """Continue the subscriptions of an earlier server process. Resources whose conversation no longer exists or
        is damaged are left out.

        `has_listed` is True if the client had listed the resources, and is therefore notified when the list
        changes.

        Raises:
            StoreError: the conversation of a resource cannot be read.
        """
        for uri in uris:
            try:
                await self.subscribe(uri, principal)
            except (RequestRefused, Unreadable) as error:
                log.info("a subscription of a session cannot be continued: %s", error)
        if has_listed:
            await self.listed(principal)

    def unsubscribe(self, uri: str) -> None:
        """Send no further notifications about the resource. Do nothing if the client has not subscribed to the
        resource.
        """
        if (subscribed := self._remove(uri)) is not None:
            updated, watch = subscribed
            updated.close()
            if watch is not None:
                watch.close()
            self._session.changed()

    def _remove(self, uri: str) -> tuple[CoalescedNotification, ResourceWatch | None] | None:
        if (removed := self._subscribed.pop(uri, None)) is not None:
            give_back_subscriptions(self._server, self._principal)
        return removed

    async def listed(self, principal: Principal) -> None:
        """Record that the client has listed the resources. From now on, notify the client of changes to the list.

        Raises:
            StoreError: the store cannot be searched.
        """
        if self._list is not None:
            return
        changed = self._notification(ResourceListChanged.METHOD, b"{}")
        watch = ListWatch(self._server.conversations, principal, changed.send, ignores_states=True)
        self._list = changed, watch
        try:
            await watch.begin()
        except BaseException:
            self._list = None
            raise
        self._register()
        self._session.changed()

    def _notification(self, method: str, params: bytes) -> CoalescedNotification:
        return CoalescedNotification(self._session.out, notification(method, params))

    def _register(self) -> None:
        self._session.on_leave(self, self._close)
        self._session.on_reconnect(self, self._send_again)

    def _send_again(self) -> None:
        """Send a notification for every subscribed resource, because the client may have missed notifications."""
        for updated, _ in self._subscribed.values():
            updated.send()
        if self._list is not None:
            self._list[0].send()

    def _close(self) -> None:
        for uri in tuple(self._subscribed):
            self.unsubscribe(uri)
        if self._list is not None:
            changed, watch = self._list
            changed.close()
            watch.close()
