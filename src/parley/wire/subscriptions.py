"""The request `subscriptions/listen` of version 2026-07-28, which stays open and carries notifications."""

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
    """The first notification of the request.

    The notification names the types of notifications that the server will send.
    """

    METHOD: ClassVar[str] = "notifications/subscriptions/acknowledged"

    notifications: NotificationFilter
