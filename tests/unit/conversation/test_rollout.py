"""Sessions of Codex CLI: the model continues from the same history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    error,
    task_complete,
    task_started,
    text,
    user_message,
)
from kit.builders.logs import history_of, state_of
from kit.builders.records import call_output, message, model_asked, model_said, turn_ended, turn_started
from kit.builders.rollouts import (
    SESSION,
    SHELL_OUTPUT,
    STATE,
    assistant,
    function_call,
    function_call_output,
    local_shell_call,
    reasoning,
    rollout,
    user,
)
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.conversation.records import CallItem, OpaqueItem, TurnEnded
from parley.conversation.rollout import UNFINISHED, RolloutReader, read_session
from parley.conversation.state import Phase
from parley.errors import BadFile
from parley.wire.events import EventBase, TaskComplete, UserMessage
from parley.wire.ids import CallId
from parley.wire.items import ImageItem


def read_rollout(lines: list[bytes]) -> tuple[list[LogPayload], int]:
    """Return the entries, and the number of items that were left out."""
    reader = RolloutReader(read_session(lines[0]))
    payloads = list(reader.read(enumerate(lines[1:], start=2)))
    return payloads, reader.left_out


def history(*items: Any) -> list[HistoryItem]:
    return history_of(*read_rollout(rollout(*items))[0]).items


def shell_call(call_id: str) -> CallItem:
    """Return a `function_call` as a record, and in the form that the provider gets again."""
    verbatim = json.dumps(function_call(call_id))
    return CallItem(
        call_id=CallId(call_id),
        name="shell",
        arguments='{"command": ["echo", "x"]}',
        verbatim=Raw(verbatim.encode()),
    )


def test_a_session_with_a_command_becomes_a_turn_with_all_that_a_turn_has() -> None:
    payloads, left_out = read_rollout(
        rollout(
            STATE,
            user("go"),
            STATE,
            STATE,
            function_call("call1"),
            function_call_output("call1"),
            STATE,
            STATE,
            assistant("Done"),
        )
    )
    said = payloads[2]

    assert isinstance(said, UserMessage)
    assert payloads == [
        turn_started("1"),
        task_started(),
        user_message("go", message_id=said.message_id),
        model_asked(),
        model_said(shell_call("call1")),
        call_output("call1", SHELL_OUTPUT),
        model_asked(),
        agent_message("Done"),
        model_said(message("Done")),
        task_complete("Done"),
        turn_ended(),
    ]
    assert left_out == 0


def test_the_model_is_sent_what_it_was_sent_there() -> None:
    assert history(
        user("one"),
        reasoning("Hm."),
        function_call("c"),
        function_call_output("c", "told"),
        assistant("First"),
        user("two", "three"),
        assistant("Second"),
    ) == [
        UserItem((text("one"),)),
        OpaqueItem(verbatim=Raw(json.dumps(reasoning("Hm.")).encode())),
        shell_call("c"),
        OutputItem(CallId("c"), "told"),
        message("First"),
        UserItem((text("two"), text("three"))),
        message("Second"),
    ]


def test_clients_see_what_was_said_and_the_summaries_of_what_was_thought() -> None:
    payloads, _ = read_rollout(rollout(user("go"), reasoning("First I", "Then I"), assistant("Done")))

    seen = [one for one in payloads if isinstance(one, EventBase) and not isinstance(one, UserMessage)]
    assert seen == [
        task_started(),
        agent_reasoning("First I"),
        agent_reasoning("Then I"),
        agent_message("Done"),
        task_complete("Done"),
    ]


def test_a_call_of_the_local_shell_is_one_by_its_own_id_or_that_of_its_item() -> None:
    items = history(
        user("go"),
        local_shell_call("c"),
        function_call_output("c", "one"),
        local_shell_call(None, "lsh_1"),
        function_call_output("lsh_1", "two"),
    )
    calls = [item for item in items if isinstance(item, CallItem)]

    assert [(call.call_id, call.name, json.loads(call.arguments)) for call in calls] == [
        ("c", "local_shell", {"type": "exec", "command": ["ls"]}),
        ("lsh_1", "local_shell", {"type": "exec", "command": ["ls"]}),
    ]
    assert [item.output for item in items if isinstance(item, OutputItem)] == ["one", "two"]


def test_an_image_is_part_of_the_message() -> None:
    content = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]

    assert history({"type": "message", "role": "user", "content": content}) == [
        UserItem((text("see"), ImageItem(image_url="data:image/png;base64,AA==")))
    ]


@pytest.mark.parametrize("tag", ["environment_context", "user_instructions"])
def test_generated_messages_are_left_out_and_not_counted(tag: str) -> None:
    payloads, left_out = read_rollout(rollout(user(f"<{tag}>\n\nx\n\n</{tag}>"), user("go"), assistant("Done")))

    assert history_of(*payloads).items == [UserItem((text("go"),)), message("Done")]
    assert left_out == 0


# --- unfinished turns, and items that are left out -------------------------------------------------


def test_a_call_without_output_gets_one_and_its_turn_was_interrupted() -> None:
    payloads, _ = read_rollout(
        rollout(user("go"), function_call("a"), function_call("b"), user("again"), assistant("Yes"))
    )

    assert [item.output for item in history_of(*payloads).items if isinstance(item, OutputItem)] == [
        "aborted",
        "aborted",
    ]
    assert [one for one in payloads if isinstance(one, TurnEnded)] == [
        turn_ended("interrupted", UNFINISHED),
        turn_ended(),
    ]
    assert error(UNFINISHED, "interrupted") in payloads


def test_an_unanswered_message_stays_in_the_history() -> None:
    payloads, _ = read_rollout(rollout(user("one"), user("two")))

    assert history_of(*payloads).items == [UserItem((text("one"),)), UserItem((text("two"),))]
    assert state_of(*payloads).phase is Phase.IDLE


def test_model_items_before_the_first_message_are_a_separate_turn() -> None:
    payloads, _ = read_rollout(rollout(assistant("Hello"), user("go"), assistant("Done")))

    assert [one.last_agent_message for one in payloads if isinstance(one, TaskComplete)] == ["Hello", "Done"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "message", "role": "developer", "content": []},
        {"type": "message", "role": "user", "content": []},
        {"type": "message", "role": "user", "content": "text"},
        {"type": "message", "role": "user", "content": [{"type": "input_audio"}]},
        {"type": "message", "role": "assistant", "content": []},
        {"type": "function_call", "name": "shell", "arguments": "{}"},
        {"type": "function_call", "call_id": "", "name": "shell", "arguments": "{}"},
        {"type": "local_shell_call", "action": {}},
        function_call_output("without a call"),
        {"record_type": "dream"},
        {},
        [],
        7,
        None,
    ],
)
def test_an_item_that_has_no_place_is_left_out_and_counted(item: Any) -> None:
    payloads, left_out = read_rollout(rollout(user("go"), item, assistant("Done")))

    assert history_of(*payloads).items == [UserItem((text("go"),)), message("Done")]
    assert left_out == 1


def test_a_second_output_of_a_call_is_left_out() -> None:
    payloads, left_out = read_rollout(
        rollout(user("go"), function_call("c"), function_call_output("c", "1"), function_call_output("c", "2"))
    )

    assert [item.output for item in history_of(*payloads).items if isinstance(item, OutputItem)] == ["1"]
    assert left_out == 1


def test_half_a_surrogate_pair_is_mended() -> None:
    lines = rollout(user("go"))

    payloads, _ = read_rollout([*lines, rb'{"type": "reasoning", "summary": [], "x": "\ud800"}' + b"\n"])

    assert history_of(*payloads).items[-1] == OpaqueItem(
        verbatim=Raw('{"type":"reasoning","summary":[],"x":"�"}'.encode())
    )


# --- invalid files -------------------------------------------------------------------------------


def test_messages_have_the_same_ids_each_time() -> None:
    lines = rollout(user("one"), user("two"))

    assert read_rollout(lines) == read_rollout(lines)
    assert len(set(state_of(*read_rollout(lines)[0]).messages)) == 2


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    payloads, left_out = read_rollout([*rollout(user("go"), assistant("Done")), b'{"type": "mess'])

    assert history_of(*payloads).items == [UserItem((text("go"),)), message("Done")]
    assert left_out == 1


def test_a_line_that_is_not_json_is_refused() -> None:
    lines = rollout(user("go"), assistant("Done"))

    with pytest.raises(BadFile, match=r"^line 3: not JSON: "):
        read_rollout([*lines[:2], b"{broken\n", *lines[2:]])


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ({}, "not the first line of a rollout file"),
        ([], "not the first line of a rollout file"),
        ({**SESSION, "id": "seven"}, "'seven' is not the id of a session"),
    ],
)
def test_a_first_line_that_is_not_about_a_session_is_refused(session: Any, why: str) -> None:
    with pytest.raises(BadFile) as caught:
        read_rollout(rollout(user("go"), session=session))

    assert str(caught.value) == f"line 1: {why}"
