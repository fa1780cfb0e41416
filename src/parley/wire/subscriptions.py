"""The messages of the method `subscriptions/listen` at version 2026-07-28. The request stays open, and the server
sends notifications until the request ends.
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import UNSET, Struct, UnsetType

__all__ = ["SUBSCRIPTION_ID", "ListenParams", "NotificationFilter", "SubscriptionAcknowledged"]

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
"""The member of `_meta` that contains the id of the request `subscriptions/listen` to which a notification belongs.
"""


class NotificationFilter(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The types of notifications that a client requests, or that the server will send."""

    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()


class ListenParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "subscriptions/listen"

    notifications: NotificationFilter | UnsetType = UNSET


class SubscriptionAcknowledged(Struct, frozen=True, kw_only=True):
    """Params of the first notification that the server sends for a `subscriptions/listen` request. The params name
    the types of notifications that the server will send.
    """

    METHOD: ClassVar[str] = "notifications/subscriptions/acknowledged"

    notifications: NotificationFilter
