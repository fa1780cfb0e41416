"""Notifications of the webhook: they are retried, coalesced, and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from kit.servers.local_server import StandingClock
from kit.servers.webhook_receiver import WebhookReceiver
from kit.system.waiting import until
from parley.app.deliveries import DRAIN_SECONDS, MAX_ATTEMPTS, MAX_CONCURRENT
from parley.app.webhook import MAX_CONVERSATIONS, WebhookSender, signature
from parley.config.types import Secret, Webhook, WebhookState
from parley.errors import BadSetting
from parley.models.http import Http
from parley.wire.ids import ConversationId

KEY = Secret(b"k" * 24)
FIRST, OTHER = ConversationId("first"), ConversationId("other")
ALL: tuple[WebhookState, ...] = ("waiting", "failed", "finished")


class Sending:
    """A sender with a clock that stands still."""

    def __init__(self, url: str) -> None:
        self.clock = StandingClock()
        self.webhook: Webhook | None = Webhook(url=url, key=KEY, events=ALL)
        self.http = Http()
        self.sender = WebhookSender(lambda: self.webhook, self.http, self.clock, {})

    def has_slept(self, times: int) -> bool:
        """Return whether the sender has begun this many delays."""
        return len(self.clock._sleeping) == times


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[Sending]:
    one = Sending(url)
    yield one
    await one.sender.close(seconds=DRAIN_SECONDS)
    await one.http.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the lines of the log."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "parley.app.webhook"]


async def test_a_notification_is_repeated_with_growing_delays_until_it_is_accepted() -> None:
    async with WebhookReceiver() as receiver, sending(f"{receiver.url}/hook?x=1") as one:
        receiver.statuses = [500, 307, 404, 204]
        one.sender.notify(FIRST, "finished")
        for number, seconds in enumerate((1.0, 2.0, 4.0), start=1):
            await until(partial(one.has_slept, number))
            one.clock.passes(seconds - 0.1)
            assert len(receiver.received) == number
            one.clock.passes(0.1)
        await receiver.wait_for(4)
        await until(lambda: one.sender.deliveries.is_idle)

        times = [0, 1, 3, 7]
        (identity,) = {sent.headers["webhook-id"] for sent in receiver.received}
        assert [sent.headers["webhook-timestamp"] for sent in receiver.received] == [str(at) for at in times]
        assert {sent.body for sent in receiver.received} == {receiver.received[0].body}
        assert receiver.received[0].json == {
            "delivery_id": identity,
            "conversation_id": "first",
            "state": "finished",
            "timestamp": "1970-01-01T00:00:00.000Z",
        }
        for sent in receiver.received:
            at, given = sent.headers["webhook-timestamp"], sent.headers["webhook-signature"]
            assert given == signature(KEY, identity, at, sent.body)
            assert sent.headers["content-type"] == "application/json"


async def test_the_log_says_when_a_notification_is_given_up(logged: Callable[[], list[str]]) -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.statuses = [503] * MAX_ATTEMPTS
        one.sender.notify(FIRST, "failed")
        for number in range(1, MAX_ATTEMPTS):
            await until(partial(one.has_slept, number))
            one.clock.passes(60.0)
        await receiver.wait_for(MAX_ATTEMPTS)
        await until(lambda: one.sender.deliveries.is_idle)

        assert logged() == ["discarded a webhook notification after 10 attempts: status 503"]
        one.sender.notify(FIRST, "finished")
        await receiver.wait_for(MAX_ATTEMPTS + 1)


async def test_only_the_newest_state_of_a_conversation_is_sent() -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.statuses = [500]
        one.sender.notify(FIRST, "waiting")
        await until(partial(one.has_slept, 1))
        one.sender.notify(FIRST, "waiting")
        one.sender.notify(FIRST, "failed")
        one.clock.passes(1.0)
        await receiver.wait_for(2)
        await until(lambda: one.sender.deliveries.is_idle)

        assert [sent.json["state"] for sent in receiver.received] == ["waiting", "failed"]


async def test_a_slow_receiver_delays_no_other_conversation_and_a_newer_state_follows() -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.held = asyncio.Event()
        one.sender.notify(FIRST, "waiting")
        one.sender.notify(OTHER, "waiting")
        await receiver.wait_for(2)
        one.sender.notify(FIRST, "finished")
        receiver.held.set()
        await receiver.wait_for(3)
        await until(lambda: one.sender.deliveries.is_idle)

        last = receiver.received[-1].json
        assert (last["conversation_id"], last["state"]) == ("first", "finished")


async def test_the_number_of_waiting_notifications_is_limited(logged: Callable[[], list[str]]) -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        for number in range(MAX_CONVERSATIONS + 2):
            one.sender.notify(ConversationId(str(number)), "finished")
        assert len(one.sender.deliveries) == MAX_CONVERSATIONS
        one.webhook = None  # the other notifications are dropped
        await until(lambda: one.sender.deliveries.is_idle)

        assert logged() == ["discarded a webhook notification: 1000 others are waiting"]
        assert receiver.received == []


async def test_settings_decide_at_every_moment(logged: Callable[[], list[str]]) -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        one.webhook = Webhook(url=receiver.url, key=KEY, events=("failed",))
        for state in ALL:
            one.sender.notify(ConversationId(state), state)
        one.webhook = Webhook(url=receiver.url, key=KEY, events=ALL)
        (sent,) = await receiver.wait_for(1)
        await until(lambda: one.sender.deliveries.is_idle)
        assert sent.json["state"] == "failed"

        def unusable() -> Webhook | None:
            raise BadSetting("no")

        WebhookSender(unusable, one.http, one.clock, {}).notify(FIRST, "failed")
        assert logged() == ["the webhook is not notified: no"]


async def test_a_server_that_stops_waits_for_an_attempt_and_repeats_none(logged: Callable[[], list[str]]) -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.statuses = [500, 204, 204]
        one.sender.notify(FIRST, "finished")
        await until(partial(one.has_slept, 1))
        one.sender.notify(OTHER, "finished")
        await one.sender.close(seconds=DRAIN_SECONDS)

        assert [sent.json["conversation_id"] for sent in receiver.received] == ["first", "other"]
        assert logged() == ["discarded 1 webhook notifications: the server is shutting down"]
        one.sender.notify(FIRST, "failed")
        assert one.sender.deliveries.is_idle


async def test_a_receiver_that_cannot_be_reached_is_named_without_its_path(
    logged: Callable[[], list[str]],
) -> None:
    async with WebhookReceiver() as receiver:
        url = receiver.url
    async with sending(f"{url}/secret") as one:
        one.sender.notify(FIRST, "finished")
        for number in range(1, MAX_ATTEMPTS):
            await until(partial(one.has_slept, number))
            one.clock.passes(60.0)
        await until(lambda: one.sender.deliveries.is_idle)

        (line,) = logged()
        assert line.startswith("discarded a webhook notification after 10 attempts: ")
        assert "secret" not in line


async def test_a_notification_that_waited_for_room_has_the_newest_state_and_a_stop_drops_it() -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.held = asyncio.Event()
        for number in range(MAX_CONCURRENT):
            one.sender.notify(ConversationId(str(number)), "finished")
        await receiver.wait_for(MAX_CONCURRENT)
        one.sender.notify(FIRST, "waiting")
        await asyncio.sleep(0)  # its delivery waits until another delivery ends
        one.sender.notify(FIRST, "finished")
        receiver.held.set()
        await until(lambda: one.sender.deliveries.is_idle)
        assert [sent.json["state"] for sent in receiver.received[MAX_CONCURRENT:]] == ["finished"]

        receiver.held = asyncio.Event()
        for number in range(MAX_CONCURRENT + 1):
            one.sender.notify(ConversationId(str(number)), "failed")
        await receiver.wait_for(2 * MAX_CONCURRENT + 1)
        closing = asyncio.create_task(one.sender.close(seconds=DRAIN_SECONDS))
        await asyncio.sleep(0)
        receiver.held.set()
        await closing

        assert len(receiver.received) == 2 * MAX_CONCURRENT + 1


async def test_a_server_that_has_no_time_left_waits_for_no_attempt() -> None:
    async with WebhookReceiver() as receiver, sending(receiver.url) as one:
        receiver.held = asyncio.Event()
        one.sender.notify(FIRST, "finished")
        await receiver.wait_for(1)

        await one.sender.close(seconds=0.0)

        assert one.sender.deliveries.is_idle
        receiver.held.set()
