"""The input that the model gets when a turn is continued."""

from __future__ import annotations

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.logs import log_of
from kit.builders.records import settings_chosen
from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from parley.conversation.history import UserItem
from parley.conversation.log import LogPayload
from parley.conversation.records import MessageItem, ModelAsked, ModelSaid, TurnEnded, TurnStarted
from parley.conversation.state import Phase
from parley.runtime.turn_runner import LocalTurn
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import EventId, MessageId
from parley.wire.items import TextItem
from parley.wire.principals import LOCAL

SAID = UserMessage(message_id=MessageId("m"), content=(TextItem(text="go"),))
ANSWERED = (ModelAsked(inputs=1), ModelSaid(item=MessageItem(text="Words of the model")))


@pytest.mark.promises("continue.result")
@pytest.mark.parametrize(("answers", "last"), [((), "go"), (ANSWERED, "Continue.")])
async def test_a_request_ends_with_input_of_the_user(home: str, answers: tuple[LogPayload, ...], last: str) -> None:
    store = SlowStore()
    turn = (TurnStarted(event_id=EventId("1")), TaskStarted(), SAID, *answers, TurnEnded(why="interrupted"))
    log = log_of(settings_chosen(cwd=home), *turn)
    await store.create(FIRST, log.entries, summary())
    began: list[LocalTurn | None] = []
    async with Life(home, store) as life:
        conversation = life.conversations.get(FIRST)
        await conversation.continue_turn(principal=LOCAL, began=began.append)
        await life.until(conversation, Phase.IDLE)
        types = [entry.type for entry in conversation.log.entries][len(log.entries) :]

    sent = life.requests[-1].history[-1]
    assert isinstance(sent, UserItem)
    assert sent.content == (TextItem(text=last),)
    assert [None if one is None else one.event_id for one in began] == ["2"]
    assert types[:2] == ["turn_started", "task_started"]
    assert "user_message" not in types
