"""The method `subscriptions/listen` at protocol version 2026-07-28. The request stays open, and the server sends
notifications about changes until the request ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UnsetType

from parley.errors import UnknownConversation
from parley.server.access import require_role
from parley.server.context import Role, ServerContext
from parley.server.dispatch import Call
from parley.server.errors import TooManySubscriptions, UnknownResource
from parley.server.params import params_of
from parley.server.resources.subscriptions import MAX_SUBSCRIPTIONS, give_back_subscriptions, take_subscriptions
from parley.server.resources.uris import address_of
from parley.server.resources.watching import CoalescedNotification, ListWatch, ResourceWatch, watch_resource
from parley.server.session import Session
from parley.wire.jsonrpc import encode, notification
from parley.wire.resources import ResourceListChanged, ResourceUpdated
from parley.wire.subscriptions import (
    SUBSCRIPTION_ID,
    ListenParams,
    NotificationFilter,
    SubscriptionAcknowledged,
)

__all__ = ["listen"]

_decoder: Final = msgspec.json.Decoder(ListenParams)


async def listen(call: Call, session: Session, server: ServerContext) -> None:
    """Send the notifications that match the filter in the request, until the client cancels the request or the
    server shuts down.

    Raises:
        TooManySubscriptions: the filter names too many resources.
        StoreError: a conversation cannot be read.
    """
    require_role(call.context.principal, Role.OBSERVER)
    wanted = params_of(_decoder, call).notifications
    if isinstance(wanted, UnsetType):
        wanted = NotificationFilter()
    if len(wanted.resource_subscriptions) > MAX_SUBSCRIPTIONS:
        raise TooManySubscriptions(MAX_SUBSCRIPTIONS)
    listening = _Listening(call, session, server)
    try:
        await listening.begin(wanted)
    except BaseException:
        listening.close()
        raise


class _Listening:
    """One open `subscriptions/listen` request."""

    def __init__(self, call: Call, session: Session, server: ServerContext) -> None:
        self._call, self._session, self._server = call, session, server
        self._count = 0
        """The number of resources to which the request subscribes."""
        self._out = call.context.reply.notifications
        self._watches: list[tuple[CoalescedNotification, ResourceWatch]] = []
        self._due: list[Callable[[], None]] | None = []
        """The notifications that are delayed until the acknowledgement of the request has been sent; None after the
        acknowledgement.
        """

    async def begin(self, wanted: NotificationFilter) -> None:
        principal, conversations = self._call.context.principal, self._server.conversations
        self._session.on_leave(self, self.close)
        uris, honoured = dict.fromkeys(wanted.resource_subscriptions), []
        take_subscriptions(self._server, principal, len(uris))
        self._count = len(uris)
        for uri in uris:
            updated = self._notification(ResourceUpdated.METHOD, uri=uri)
            try:
                watch = await watch_resource(address_of(uri), conversations, principal, self._when_ready(updated))
            except (UnknownResource, UnknownConversation):
                continue
            self._watches.append((updated, watch))
            honoured.append(uri)
        if wanted.resources_list_changed:
            changed = self._notification(ResourceListChanged.METHOD)
            watched = ListWatch(conversations, principal, self._when_ready(changed), ignores_states=True)
            self._watches.append((changed, watched))
            await watched.begin()
        if self._session.has_left or self._call.cancelled:
            self.close()
            self._call.drop()
            return
        acknowledged = NotificationFilter(
            resources_list_changed=wanted.resources_list_changed, resource_subscriptions=tuple(honoured)
        )
        self._out.send(self._frame(SubscriptionAcknowledged.METHOD, notifications=acknowledged))
        due, self._due = self._due or [], None
        for send in due:
            send()
        self._call.hold(self._end)
        self._call.on_cancel(self._cancelled)

    def close(self) -> None:
        """Stop sending notifications."""
        self._session.cancel_on_leave(self)
        for notice, watch in self._watches:
            notice.close()
            watch.close()
        self._watches.clear()
        give_back_subscriptions(self._server, self._call.context.principal, self._count)
        self._count = 0

    def _cancelled(self) -> None:
        self.close()
        self._call.drop()

    def _end(self) -> None:
        """Send the response, which ends the request, because the server is shutting down."""
        self.close()
        self._call.finished()
        if not self._call.closed:
            self._call.answer(b"{}")

    def _when_ready(self, notice: CoalescedNotification) -> Callable[[], None]:
        def changed() -> None:
            if self._due is None:
                notice.send()
            else:
                self._due.append(notice.send)

        return changed

    def _notification(self, method: str, **params: Any) -> CoalescedNotification:
        return CoalescedNotification(self._out, self._frame(method, **params))

    def _frame(self, method: str, **params: Any) -> bytes:
        return notification(method, encode({"_meta": {SUBSCRIPTION_ID: self._call.id}, **params}))
