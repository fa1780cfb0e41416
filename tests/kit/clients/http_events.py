"""The events that HTTP clients receive, and how they compare with the log."""

from __future__ import annotations

from typing import Any

from kit.clients.http_client import HttpClient, SseEvent, SseReader

__all__ = ["last_id_of", "logged", "positions_in", "until_seen"]


def last_id_of(events: list[SseEvent], before: str | None = None) -> str | None:
    """Return the last id of some events; `before` if they have none."""
    return next((event.id for event in reversed(events) if event.id is not None), before)


def positions_in(messages: list[Any], conversation: str) -> list[int]:
    """Return the positions of all events of a conversation in the order of arrival, including events in log
    messages. Events without a conversation id count too, because the client has only one stream.
    """
    found = []
    for message in messages:
        params = message.get("params", {})
        params = params.get("data", {"params": params})["params"]
        meta = params.get("_meta", {})
        if meta.get("conversationId", conversation) != conversation:
            continue
        if "initial_state" in params:
            found += [one["_meta"]["seq"] for one in params["initial_state"]["events"] if "seq" in one["_meta"]]
        elif "seq" in meta:
            found.append(meta["seq"])
    return found


async def until_seen(stream: SseReader, before: list[SseEvent], conversation: str, expected: list[int]) -> None:
    """Read until a client that has the events `before` has exactly these positions, in this order."""
    while True:
        messages = [one.message for one in (*before, *stream.events)]
        found = positions_in(messages, conversation)
        assert found == expected[: len(found)]
        if found == expected:
            return
        assert await stream.next() is not None


async def logged(client: HttpClient, conversation: str) -> list[int]:
    """Return the positions of all events of a conversation."""
    page = await client.call("conversationRead", conversation_id=conversation, limit=1000)
    return [event["seq"] for event in page["events"]]
