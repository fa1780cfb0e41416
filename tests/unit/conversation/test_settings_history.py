"""The settings at each message, in every branch."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.events import agent_message, task_started, text, user_message
from kit.builders.records import input_read, settings_chosen, turn_ended, turn_started
from parley.conversation.errors import ParentUnknown
from parley.conversation.log import LogPayload
from parley.conversation.settings_history import SettingsChange, SettingsHistory
from parley.wire.ids import ConversationId, MessageId

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")


def history_of(*payloads: LogPayload) -> SettingsHistory:
    settings_history = SettingsHistory()
    for one in payloads:
        settings_history.apply(one)
    return settings_history


def turn(message_id: str, *, parent: str | None = None, **asked: Any) -> tuple[LogPayload, ...]:
    """Return a complete turn whose message has these settings."""
    chosen = (settings_chosen(**asked),) if asked else ()
    said = user_message("go", message_id=message_id, parent=parent)
    return (turn_started(message_id), task_started(), said, *chosen, agent_message("Done"), turn_ended())


def asked(change: SettingsChange) -> list[dict[str, Any]]:
    """Return all overrides, beginning with the first."""
    return [*(asked(change.before) if change.before else ()), change.asked]


BEGUN = settings_chosen(cwd="/project", profile="p")


def test_a_conversation_begins_with_the_requested_settings() -> None:
    settings_history = history_of(BEGUN)

    assert (
        asked(settings_history.now)
        == asked(settings_history.first)
        == asked(settings_history.of_turn)
        == [{"profile": "p"}]
    )
    assert settings_history.now.by is None


def test_settings_of_a_message_apply_from_that_message_on() -> None:
    settings_history = history_of(BEGUN, *turn("a"), *turn("b", sandbox="read-only"), *turn("c"))

    assert asked(settings_history.after(MessageId("a"), CONVERSATION)) == [{"profile": "p"}]
    assert asked(settings_history.after(MessageId("b"), CONVERSATION)) == [
        {"profile": "p"},
        {"sandbox": "read-only"},
    ]
    assert settings_history.after(MessageId("c"), CONVERSATION) is settings_history.after(
        MessageId("b"), CONVERSATION
    )
    assert settings_history.after(None, CONVERSATION) is settings_history.now
    assert settings_history.now.by == "b"


def test_a_branch_continues_from_its_parent() -> None:
    before = (BEGUN, *turn("a", sandbox="read-only"), *turn("b", effort="low"))
    settings_history = history_of(*before, *turn("c", parent="a"), *turn("d", summary="none"))

    assert asked(settings_history.now) == [{"profile": "p"}, {"sandbox": "read-only"}, {"summary": "none"}]
    assert asked(settings_history.after(MessageId("b"), CONVERSATION))[-1] == {"effort": "low"}


def test_a_branch_from_the_conversation_itself_continues_from_its_beginning() -> None:
    settings_history = history_of(BEGUN, *turn("a", sandbox="read-only"), *turn("b", parent=CONVERSATION))

    assert settings_history.now is settings_history.first
    assert settings_history.after(MessageId(CONVERSATION), CONVERSATION) is settings_history.first


def test_settings_of_a_joining_message_apply_to_the_next_turn() -> None:
    started = (
        turn_started(),
        task_started(),
        user_message("go", message_id="a"),
        settings_chosen(sandbox="read-only"),
    )
    joined = (user_message("and?", message_id="b"), input_read(text("read"), message_id="b"))
    settings_history = history_of(BEGUN, *started, agent_message("Hm"), *joined, settings_chosen(effort="low"))

    assert asked(settings_history.of_turn) == [{"profile": "p"}, {"sandbox": "read-only"}]
    assert asked(settings_history.now) == [{"profile": "p"}, {"sandbox": "read-only"}, {"effort": "low"}]

    for one in (turn_ended(), turn_started("2"), user_message("more", message_id="c")):
        settings_history.apply(one)
    assert settings_history.of_turn is settings_history.now


def test_a_parent_that_was_never_said_is_refused() -> None:
    with pytest.raises(ParentUnknown):
        history_of(BEGUN, *turn("a")).after(MessageId("z"), CONVERSATION)
