"""Recognizes the requests at protocol version 2026-07-28 among the messages of a client, and checks their `_meta`.

A request belongs to this version if its `_meta` names a version. The server does not store the version of a client,
so the next request of the same client may belong to another version.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from parley.config.load import Loader
from parley.conversation.approvals import PendingApproval
from parley.server.access import may_answer
from parley.server.context import Principal, Reply, RequestContext
from parley.server.errors import InvalidParams, UnsupportedVersion
from parley.server.hosts import features_of
from parley.server.mcp_settings import mcp_settings
from parley.wire.modern import MODERN_VERSION, BadMeta, ModernMeta, named_version, read_meta

__all__ = ["can_be_asked", "checked_meta", "meta_of", "modern_context"]


def meta_of(params: Raw | UnsetType, loader: Loader) -> ModernMeta | None:
    """Return the `_meta` in the parameters of a request; None if the request is at an earlier protocol version, or
    if the setting `[mcp] modern` is off.

    Raises:
        InvalidParams: the `_meta` is incomplete.
        UnsupportedVersion: the server does not support the version.
    """
    if named_version(params) is UNSET or not mcp_settings(loader).modern:
        return None
    return checked_meta(params)


def checked_meta(params: Raw | UnsetType) -> ModernMeta:
    """Return the `_meta` in the parameters of a request at protocol version 2026-07-28.

    Raises:
        InvalidParams: the `_meta` is incomplete.
        UnsupportedVersion: the server does not support the version.
    """
    try:
        meta = read_meta(params)
    except BadMeta as error:
        raise InvalidParams(error) from None
    if meta.version != MODERN_VERSION:
        raise UnsupportedVersion(meta.version)
    return meta


def modern_context(meta: ModernMeta, principal: Principal, reply: Reply, loader: Loader) -> RequestContext:
    """Return the context of a request at protocol version 2026-07-28 that `principal` has sent with the given
    `_meta`.
    """
    features = features_of(MODERN_VERSION, meta.client_name, mcp_settings(loader))
    return RequestContext(principal=principal, features=features, reply=reply, meta=meta)


def can_be_asked(context: RequestContext, approval: PendingApproval | None = None) -> bool:
    """Return whether the server can ask the sender of a request at protocol version 2026-07-28 to decide an
    approval.

    The client must declare the capability `elicitation` in this request, and its principal must be allowed to
    decide `approval`. If `approval` is None, only the role of the principal must allow it to decide approvals.
    """
    declares = context.meta is not None and context.meta.capabilities.can_be_asked
    return declares and may_answer(context.principal, approval)
