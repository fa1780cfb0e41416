"""Invalid arguments: every refusal names the tool and the field, and nothing is changed.

The invalid values are derived from the server's schemas, so that a new argument is tested automatically.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest

from parley.testing import HOLD, RawParley, ScriptedModel, check_message
from parley.wire.jsonrpc import encode

UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"
FULL, PLAIN = "2025-11-25", "2025-06-18"

CODEX: Final = ("codex", "codex-reply")
PLAIN_FAILURES: Final = (*CODEX, "conversationStream", "conversationsList")
"""Tools whose failures are only a text. Other tools return a typed value as well."""

WORDS: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "object": "a map",
    "array": "a sequence",
}

WRONG: Final[dict[str, list[tuple[Any, str]]]] = {
    "string": [("x", 'string "x"')],
    "integer": [(5, "integer `5`")],
    "number": [(1.5, "floating point `1.5`")],
    "boolean": [(True, "boolean `true`")],
    "object": [({}, "map"), ({"a": 1}, "map")],
    "array": [([], "sequence"), (["x"], "sequence")],
}
"""Values of each JSON type, and their descriptions in error messages."""

ITEMS: Final[list[tuple[Any, str]]] = [
    (5, "invalid type: integer `5`, expected a map (content[0])"),
    ("go", 'invalid type: string "go", expected a map (content[0])'),
    (None, "invalid type: null, expected a map (content[0])"),
    ([], "invalid type: sequence, expected a map (content[0])"),
    ({}, "missing field `type` (content[0])"),
    ({"text": "go"}, "missing field `type` (content[0])"),
    ({"type": 5}, "invalid type: integer `5`, expected a string (content[0].type)"),
    (
        {"type": "audio"},
        "unknown variant `audio`, expected one of `text`, `image`, `local_image`, `file` (content[0].type)",
    ),
    ({"type": "text"}, "missing field `text` (content[0])"),
    ({"type": "text", "text": 5}, "invalid type: integer `5`, expected a string (content[0].text)"),
    ({"type": "text", "text": None}, "invalid type: null, expected a string (content[0].text)"),
    ({"type": "text", "text": ["go"]}, "invalid type: sequence, expected a string (content[0].text)"),
    ({"type": "local_image"}, "missing field `path` (content[0])"),
    ({"type": "local_image", "path": {}}, "invalid type: map, expected a string (content[0].path)"),
    ({"type": "image", "image_url": 5}, "invalid type: integer `5`, expected a string (content[0].image_url)"),
    ({"type": "image", "file_id": []}, "invalid type: sequence, expected a string (content[0].file_id)"),
    (
        {"type": "image", "image_url": "data:,", "detail": "best"},
        "unknown variant `best`, expected one of `low`, `high`, `auto` (content[0].detail)",
    ),
    ({"type": "file", "file_data": 5}, "invalid type: integer `5`, expected a string (content[0].file_data)"),
    ({"type": "file", "filename": True}, "invalid type: boolean `true`, expected a string (content[0].filename)"),
]
"""Invalid content items, each with the expected error."""


class Bad(NamedTuple):
    """A call that must be refused, and the reason."""

    tool: str
    field: str
    arguments: Any
    detail: str


def wrong_values(schema: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Return invalid values of a property, with the error for each."""
    kind = schema["type"]
    for other, values in WRONG.items():
        if other == kind or (kind == "number" and other == "integer"):
            continue
        for value, description in values:
            if "minimum" in schema and other == "number":
                limits = f"at least {schema['minimum']}"
                if "maximum" in schema:
                    limits += f" and at most {schema['maximum']}"
                yield value, f"invalid value: {description}, expected {WORDS[kind]}, {limits}"
            else:
                yield value, f"invalid type: {description}, expected {WORDS[kind]}"
    if "enum" in schema:
        choices = ", ".join(f"`{choice}`" for choice in schema["enum"])
        for value in ("", "x", schema["enum"][0].upper(), f" {schema['enum'][0]}"):
            yield value, f"unknown variant `{value}`, expected one of {choices}"
    if schema.get("format") == "uuid":
        for value in ("", "x", UNKNOWN[:-1], UNKNOWN + "0", UNKNOWN.replace("0", "g")):
            yield value, f'invalid value: string "{value}", expected a uuid'
        long = "x" * 1000
        yield long, f'invalid value: string "{long[:100]}…", expected a uuid'
    if "maxLength" in schema:
        most = schema["maxLength"]
        long = "x" * (most + 1)
        yield long, f'invalid value: string "{long[:100]}…", expected a string of at most {most} characters'
    if "minimum" in schema:
        limits = f"at least {schema['minimum']}"
        if "maximum" in schema:
            limits += f" and at most {schema['maximum']}"
        out_of_range = [schema["minimum"] - 1, -(10**30)]
        out_of_range += [schema["maximum"] + 1, 10**30] if "maximum" in schema else []
        for value in out_of_range:
            yield value, f"invalid value: integer `{value}`, expected {WORDS[kind]}, {limits}"


NEEDED_ALONE = {"conversationCreate": {"cwd"}}
"""Arguments that are required unless the call has another argument instead."""


def bad_calls(tool: dict[str, Any], good: dict[str, Any]) -> Iterator[Bad]:
    """Return calls with exactly one invalid argument."""
    name, schema = tool["name"], tool["inputSchema"]
    required = schema.get("required", [])
    assert set(good) - set(required) <= NEEDED_ALONE.get(name, set())
    assert set(required) <= set(good)
    for value, description in [pair for kind, pairs in WRONG.items() if kind != "object" for pair in pairs]:
        yield Bad(name, "arguments", value, f"invalid type: {description}, expected a map (arguments)")
    for field in required:
        yield Bad(name, field, {key: good[key] for key in good if key != field}, f"missing field `{field}`")
        kind = schema["properties"][field]["type"]
        yield Bad(name, field, {**good, field: None}, f"invalid type: null, expected {WORDS[kind]} ({field})")
    for field, property_schema in schema["properties"].items():
        for value, complaint in wrong_values(property_schema):
            if (field, value) != ("content", []) and (field, value) != ("content", ["x"]):
                yield Bad(name, field, {**good, field: value}, f"{complaint} ({field})")


def refusal(tool: str, detail: str) -> dict[str, Any]:
    """Return the result of a call with invalid arguments."""
    prefix = "configuration for Codex tool" if tool in CODEX else f"arguments for {tool}"
    return failure(tool, f"Failed to parse {prefix}: {detail}")


def failure(tool: str, message: str) -> dict[str, Any]:
    """Return a failed result in the shape of the tool."""
    if tool in PLAIN_FAILURES:
        return {"content": [{"type": "text", "text": message}], "isError": True}
    value = {"message": message} if tool == "conversationCreate" else {"status": "error", "message": message}
    return {
        "content": [{"type": "text", "text": encode(value).decode()}],
        "isError": True,
        "structuredContent": value,
    }


def without_code(tool: str, result: dict[str, Any]) -> dict[str, Any]:
    """Check that a failure has a code, and return the failure as clients at older versions get it."""
    value = dict(result["structuredContent"])
    assert value.pop("code")
    if tool not in PLAIN_FAILURES:
        return {**result, "content": [{"type": "text", "text": encode(value).decode()}], "structuredContent": value}
    assert value == {"status": "error", "message": result["content"][0]["text"]}
    return {key: member for key, member in result.items() if key != "structuredContent"}


class Caller:
    """Calls tools one after another, and observes their effects."""

    def __init__(self, raw: RawParley, version: str) -> None:
        self._raw, self._version = raw, version
        self._calls = 0
        self.conversation = ""

    async def begin(self) -> None:
        info = {"name": "test", "version": "0"}
        await self.request("initialize", {"protocolVersion": self._version, "capabilities": {}, "clientInfo": info})

    async def request(self, method: str, params: object) -> Any:
        self._calls += 1
        self._raw.send({"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params})
        answer = await self._raw.read_message()
        assert answer["id"] == self._calls
        return answer["result"]

    async def call(self, tool: str, arguments: object) -> Any:
        """Return the result, without the code of a failure at 2025-11-25.

        No other message may arrive before the result.
        """
        return await self.call_with(tool, {"arguments": arguments})

    async def call_with(self, tool: str, params: dict[str, Any]) -> Any:
        """Call a tool as `call` does, with further members of the params."""
        result = await self.request("tools/call", {"name": tool, **params})
        return without_code(tool, result) if self._version == FULL and result.get("isError") else result

    async def tools(self) -> list[dict[str, Any]]:
        tools = (await self.request("tools/list", {}))["tools"]
        assert isinstance(tools, list)
        return tools

    async def create(self) -> str:
        arguments = {"prompt": "", "model": "m", "cwd": str(self._raw.work)}
        created = (await self.call("conversationCreate", arguments))["structuredContent"]
        return str(UUID(created["conversation_id"]))

    async def everything(self) -> list[Any]:
        """Return everything that a client can see of the conversations."""
        listed = (await self.call("conversationsList", {}))["structuredContent"]
        seen: list[Any] = [listed]
        for one in listed["conversations"]:
            for tool in ("conversationStatus", "conversationRead"):
                arguments = {"conversation_id": one["conversation_id"]}
                seen.append((await self.call(tool, arguments))["structuredContent"])
        return seen


@asynccontextmanager
async def caller(model: ScriptedModel, version: str = FULL) -> AsyncIterator[Caller]:
    """Yield a client with one conversation. All messages to the client are checked."""
    async with RawParley(model) as raw:
        client = Caller(raw, version)
        await client.begin()
        client.conversation = await client.create()
        yield client
        for frame in raw.frames:
            check_message(frame, version=version)


def good_arguments(conversation: str, version: str = FULL) -> dict[str, dict[str, Any]]:
    """Return the minimal valid arguments of each tool."""
    of_one = {"conversation_id": conversation}
    of_queue: dict[str, dict[str, Any]] = {
        "queueList": {},
        "queueEdit": {"message_id": str(uuid4()), "content": [{"type": "text", "text": "go"}]},
        "queueRemove": {"message_id": str(uuid4())},
        "queueResume": {},
    }
    create = {"cwd": "."} if version == FULL else {"prompt": "", "model": "m", "cwd": "."}
    return {
        "codex": {"prompt": "go"},
        "codex-reply": {"threadId" if version == FULL else "sessionId": conversation, "prompt": "go"},
        "conversationCreate": create,
        "conversationSendMessage": {**of_one, "content": [{"type": "text", "text": "go"}]},
        "conversationStream": of_one,
        "conversationsList": {},
        "conversationRead": of_one,
        **({"conversationMarkRead": {**of_one, "seq": 0}} if version == FULL else {}),
        **({"conversationSearch": {"text": "go"}} if version == FULL else {}),
        "conversationInterrupt": of_one,
        **({"conversationContinue": of_one, "conversationCompact": of_one} if version == FULL else {}),
        "conversationStatus": of_one,
        "conversationRename": {**of_one, "title": "Another name"},
        "conversationArchive": of_one,
        "conversationDelete": of_one,
        "conversationFork": of_one,
        **({name: {**of_one, **more} for name, more in of_queue.items()} if version == FULL else {}),
        **({"attentionList": {}, "settingsList": {}} if version == FULL else {}),
        "approvalsList": {},
        "approvalAnswer": {"approval_id": UNKNOWN, "decision": "denied"},
    }


@pytest.mark.promises("tools.bad-arguments", "send.failure", "create.failure", "codex.failure")
@pytest.mark.parametrize("version", [PLAIN, FULL])
async def test_every_argument_that_does_not_fit_is_named_with_its_tool(
    parley_model: ScriptedModel, version: str
) -> None:
    async with caller(parley_model, version) as client:
        before = await client.everything()
        good = good_arguments(client.conversation, version)
        tools = await client.tools()
        assert [tool["name"] for tool in tools] == list(good)

        calls = [bad for tool in tools for bad in bad_calls(tool, good[tool["name"]])]
        calls += [
            Bad(
                "conversationSendMessage", "content", {**good["conversationSendMessage"], "content": [item]}, detail
            )
            for item, detail in ITEMS
        ]
        every_field = {(tool["name"], field) for tool in tools for field in tool["inputSchema"]["properties"]}
        assert every_field <= {(bad.tool, bad.field) for bad in calls}
        for bad in calls:
            assert await client.call(bad.tool, bad.arguments) == refusal(bad.tool, bad.detail), bad

        assert await client.everything() == before
        assert parley_model.requests == []


async def test_a_bad_item_is_named_by_its_place(parley_model: ScriptedModel) -> None:
    async with caller(parley_model) as client:
        good = {"type": "text", "text": "go"}
        for place in (1, 2, 10):
            content = [*[good] * place, {"type": "text"}, good]
            arguments = {"conversation_id": client.conversation, "content": content}

            result = await client.call("conversationSendMessage", arguments)

            assert result == refusal("conversationSendMessage", f"missing field `text` (content[{place}])")


@pytest.mark.promises("tools.bad-arguments", "codex.failure", "reply.failure")
async def test_a_call_without_arguments_says_what_is_required(parley_model: ScriptedModel) -> None:
    async with caller(parley_model) as client:
        before = await client.everything()
        expected = {
            "codex": failure("codex", "Missing arguments for codex tool-call; the `prompt` field is required."),
            "codex-reply": failure(
                "codex-reply",
                "Missing arguments for codex-reply tool-call; the `session_id` and `prompt` fields are required.",
            ),
            "conversationCreate": refusal("conversationCreate", "missing field `cwd`"),
            **{
                tool: refusal(tool, "missing field `conversation_id`")
                for tool in (
                    "conversationSendMessage",
                    "conversationStream",
                    "conversationRead",
                    "conversationInterrupt",
                    "conversationStatus",
                    "conversationRename",
                    "conversationArchive",
                    "conversationDelete",
                    "conversationFork",
                )
            },
        }

        for arguments in ({}, {"arguments": None}):
            found = {tool: await client.call_with(tool, arguments) for tool in expected}

            assert found == expected
        assert await client.everything() == before


@pytest.mark.promises("tools.tolerant")
async def test_an_optional_argument_may_be_null_and_an_unknown_one_is_ignored(
    parley_model: ScriptedModel,
) -> None:
    async with caller(parley_model) as client:
        for tool in await client.tools():
            good = good_arguments(await client.create())
            name, schema = tool["name"], tool["inputSchema"]
            if name in (
                *CODEX,
                "conversationContinue",
                "conversationCompact",
                "queueEdit",
                "queueRemove",
                "conversationSendMessage",
                "conversationStream",
                "approvalAnswer",
            ):
                continue  # these tools send further messages or need an open request; other tests cover them
            optional = {field: None for field in schema["properties"] if field not in good[name]}

            result = await client.call(name, {**good[name], **optional, "no_such": {"deep": [1]}, "": 5})

            assert result["isError"] is False, name


@pytest.mark.promises("tools.tolerant")
async def test_null_and_unknown_arguments_of_codex_change_nothing(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        optional = ["model", "profile", "cwd", "base-instructions", "approval-policy", "sandbox", "config"]
        nulls: dict[str, None] = dict.fromkeys([*optional, "include-plan-tool"])
        arguments: dict[str, Any] = {"prompt": "go", **nulls, "temperature": 5, "no such": []}
        raw.send({"id": 1, "method": "tools/call", "params": {"name": "codex", "arguments": arguments}})

        answer = await raw.expect(lambda message: message.get("id") == 1)

        assert answer["result"] == {"content": [{"type": "text", "text": "Done"}]}


@pytest.mark.promises("send.failure", "read.failure", "reply.failure", "stream.unknown")
async def test_conversations_that_do_not_exist_are_refused_in_the_words_of_each_tool(
    parley_model: ScriptedModel,
) -> None:
    async with caller(parley_model) as client:
        before = await client.everything()
        expected = {
            "codex-reply": failure("codex-reply", f"Session not found for session_id: {UNKNOWN}"),
            "conversationSendMessage": failure("conversationSendMessage", "Session does not exist"),
            "conversationStream": {
                "content": [{"type": "text", "text": "Conversation does not exist"}],
                "isError": True,
            },
            "conversationRead": failure("conversationRead", "Conversation does not exist"),
            "conversationInterrupt": failure("conversationInterrupt", "Conversation does not exist"),
            "conversationStatus": failure("conversationStatus", "Conversation does not exist"),
            "conversationRename": failure("conversationRename", "Conversation does not exist"),
            "conversationArchive": failure("conversationArchive", "Conversation does not exist"),
            "conversationDelete": failure("conversationDelete", "Conversation does not exist"),
            "conversationFork": failure("conversationFork", "Conversation does not exist"),
            "approvalAnswer": failure("approvalAnswer", "Question does not exist"),
        }

        found = {tool: await client.call(tool, good_arguments(UNKNOWN)[tool]) for tool in expected}

        assert found == expected
        assert await client.everything() == before


@pytest.mark.promises("reply.failure")
async def test_a_session_id_that_is_no_uuid_is_refused(parley_model: ScriptedModel) -> None:
    async with caller(parley_model) as client:
        before = await client.everything()
        for session in ("", "x", UNKNOWN[:-1], "é" * 36, client.conversation + " "):
            result = await client.call("codex-reply", {"sessionId": session, "prompt": "go"})

            assert result == failure("codex-reply", f"Failed to parse session_id: {session!r} is not a uuid")
        assert await client.everything() == before


@pytest.mark.promises("send.failure")
async def test_a_message_without_content_is_refused_before_its_conversation_is_loaded(
    parley_model: ScriptedModel,
) -> None:
    async with caller(parley_model) as client:
        before = await client.everything()
        for conversation in (client.conversation, UNKNOWN):
            arguments = {"conversation_id": conversation, "content": []}

            result = await client.call("conversationSendMessage", arguments)

            assert result == failure("conversationSendMessage", "No content items provided")
        assert await client.everything() == before


@pytest.mark.promises("stream.after-end")
async def test_a_position_beyond_the_end_is_refused(parley_model: ScriptedModel) -> None:
    async with caller(parley_model) as client:
        before = await client.everything()
        for tool, after in product(("conversationStream", "conversationRead"), (2, 10**30)):
            result = await client.call(tool, {"conversation_id": client.conversation, "after": after})

            assert result == refusal(tool, f"after is {after}, but the conversation ends at 1")
        assert await client.everything() == before


@pytest.mark.promises("list.pages")
async def test_a_cursor_that_was_never_given_is_refused(parley_model: ScriptedModel) -> None:
    async with caller(parley_model) as client:
        for cursor in ("", "x", "é", "bm8=", "W10=", "WzFd", "bnVsbA==", "\0"):
            result = await client.call("conversationsList", {"cursor": cursor})

            assert result == refusal("conversationsList", "cursor was not issued by this server"), cursor


@pytest.mark.promises("create.failure", "codex.failure")
async def test_settings_that_cannot_be_used_open_no_conversation(parley_model: ScriptedModel) -> None:
    unusable: list[tuple[dict[str, Any], str]] = [
        ({"profile": "nope"}, "config profile `nope` not found"),
        ({"config": {"profile": "nope"}}, "config profile `nope` not found"),
        ({"config": {"model_provider": "nope"}}, "Model provider `nope` not found"),
        ({"config": {"model": 5}}, "config argument: `model`: invalid type: integer `5`, expected a string"),
        (
            {"config": {"model_providers.chat.base_url": []}},
            "config argument: `model_providers.chat.base_url`: invalid type: sequence, expected a string",
        ),
        ({"config": {"a..b": 1}}, "config argument: `a..b`: not a key"),
    ]
    async with caller(parley_model) as client:
        before = await client.everything()
        for given, detail in unusable:
            created = await client.call("conversationCreate", {"prompt": "", "model": "m", "cwd": ".", **given})
            asked = await client.call("codex", {"prompt": "go", **given})

            assert created == failure("conversationCreate", f"Failed to load config: {detail}")
            assert asked == failure("codex", f"Failed to load Codex configuration from overrides: {detail}")
        assert await client.everything() == before
        assert parley_model.requests == []


# --- messages that cannot be accepted ----------------------------------------------------------

TEXT: Final = {"type": "text", "text": "go"}

UNSENDABLE: Final[list[tuple[dict[str, Any], str]]] = [
    ({"type": "image"}, "an image needs one of `image_url`, `file_id`"),
    ({"type": "image", "image_url": None, "detail": "low"}, "an image needs one of `image_url`, `file_id`"),
    ({"type": "image", "image_url": ""}, "the `image_url` of an image is empty"),
    (
        {"type": "image", "image_url": "data:,", "file_id": "f"},
        "an image cannot have `image_url` and `file_id` at once",
    ),
    ({"type": "image", "file_id": "f"}, "an image by file id cannot be sent over the chat API"),
    ({"type": "file"}, "a file needs one of `file_url`, `file_id`, `file_data`"),
    ({"type": "file", "file_url": "https://example.org/a"}, "a file by URL cannot be sent over the chat API"),
    ({"type": "file", "file_data": "AA=="}, "a file with `file_data` needs a `filename`"),
    ({"type": "file", "file_data": "AA", "filename": "a"}, "the `file_data` of a file must be base64"),
]
"""Items that match their schema but cannot be sent to the model, each with the expected error."""

UNUSABLE: Final[list[tuple[dict[str, Any], str]]] = [
    ({"profile": "nope"}, "config profile `nope` not found"),
    ({"config": {"model_provider": "nope"}}, "Model provider `nope` not found"),
    ({"config": {"model": 5}}, "config argument: `model`: invalid type: integer `5`, expected a string"),
    ({"config": {"a..b": 1}}, "config argument: `a..b`: not a key"),
    ({"model": "other", "profile": "nope"}, "config profile `nope` not found"),
]
"""Overrides that cannot be resolved, each with the expected error."""


async def result_of_sending(client: Caller, **arguments: Any) -> Any:
    """Return the result of sending a message."""
    given = {"conversation_id": client.conversation, "content": [TEXT], **arguments}
    return await client.call("conversationSendMessage", given)


def not_taken(message: str) -> dict[str, Any]:
    return failure("conversationSendMessage", message)


@pytest.mark.promises("send.refused-items")
@pytest.mark.parametrize("version", [PLAIN, FULL])
async def test_an_item_that_cannot_be_given_to_the_model_is_named_by_its_place(
    parley_model: ScriptedModel, version: str
) -> None:
    async with caller(parley_model, version) as client:
        before = await client.everything()

        for item, why in UNSENDABLE:
            assert await result_of_sending(client, content=[item]) == not_taken(f"content[0]: {why}")
            assert await result_of_sending(client, content=[TEXT, item, TEXT]) == not_taken(f"content[1]: {why}")
        missing = {"type": "local_image", "path": "picture.png"}
        why = "content[1]: picture.png: No such file or directory (os error 2)"
        assert await result_of_sending(client, content=[missing, missing]) == not_taken(why)

        assert await client.everything() == before
        assert parley_model.requests == []


@pytest.mark.promises("send.overrides")
@pytest.mark.parametrize("version", [PLAIN, FULL])
async def test_overrides_that_cannot_be_used_are_refused_and_change_nothing(
    parley_model: ScriptedModel, version: str
) -> None:
    async with caller(parley_model, version) as client:
        before = await client.everything()

        for given, why in UNUSABLE:
            assert await result_of_sending(client, **given) == not_taken(why)

        assert await client.everything() == before
        assert parley_model.requests == []


@pytest.mark.promises("send.parent")
async def test_a_parent_that_does_not_exist_is_refused(parley_model: ScriptedModel) -> None:
    for version, given in ((FULL, {}), (FULL, {"message_id": UNKNOWN}), (PLAIN, {"message_id": UNKNOWN})):
        async with caller(parley_model, version) as client:
            before = await client.everything()

            refused = await result_of_sending(client, parent_message_id=UNKNOWN, **given)

            assert refused == not_taken("Parent message does not exist")
            assert await client.everything() == before
    assert parley_model.requests == []


@pytest.mark.promises("send.refused-items", "send.overrides", "send.parent")
async def test_the_id_of_a_message_that_was_refused_is_still_free(parley_model: ScriptedModel) -> None:
    parley_model.says(HOLD)
    async with caller(parley_model) as client:
        for given in ({"content": [{"type": "image"}]}, {"profile": "nope"}, {"parent_message_id": UNKNOWN}):
            assert (await result_of_sending(client, message_id=UNKNOWN, **given))["isError"] is True

        accepted = await result_of_sending(client, message_id=UNKNOWN)

        assert accepted["structuredContent"] == {"status": "ok", "message_id": UNKNOWN}
        await parley_model.wait_until_held()


@pytest.mark.promises("send.parent")
async def test_an_unknown_parent_of_an_older_client_is_ignored(parley_model: ScriptedModel) -> None:
    parley_model.says(HOLD)
    async with caller(parley_model, PLAIN) as client:
        arguments = {
            "conversation_id": client.conversation,
            "content": [{"type": "text", "text": "go"}],
            "parent_message_id": UNKNOWN,
        }

        accepted = await client.call("conversationSendMessage", arguments)

        assert accepted["structuredContent"] == {"status": "ok"}
        await parley_model.wait_until_held()


# --- while a turn runs -------------------------------------------------------------------


async def test_bad_calls_do_not_disturb_a_running_turn(parley_model: ScriptedModel) -> None:
    parley_model.says("one", HOLD, "two")
    async with caller(parley_model) as client:
        good = good_arguments(client.conversation)
        await client.call("conversationSendMessage", good["conversationSendMessage"])
        await parley_model.wait_until_held()
        before = await client.everything()
        tools = await client.tools()

        for bad in [bad for tool in tools for bad in bad_calls(tool, good[tool["name"]])]:
            await client.call(bad.tool, bad.arguments)

        assert await client.everything() == before
        parley_model.release()
        events: list[dict[str, Any]] = []
        seq = before[1]["seq"]
        while not events or events[-1]["type"] != "task_complete":
            waiting = {"conversation_id": client.conversation, "after": seq, "wait_seconds": 10}
            read = (await client.call("conversationRead", waiting))["structuredContent"]
            events += [one["msg"] for one in read["events"]]
            seq = read["seq"]
        assert events == [
            {"type": "agent_message", "message": "onetwo"},
            {"type": "task_complete", "last_agent_message": "onetwo"},
        ]


@pytest.mark.promises("send.parent")
async def test_a_branch_cannot_begin_while_a_turn_runs(parley_model: ScriptedModel) -> None:
    parley_model.says("one", HOLD)
    async with caller(parley_model) as client:
        first = (await result_of_sending(client))["structuredContent"]["message_id"]
        await parley_model.wait_until_held()
        before = await client.everything()

        for parent in (first, client.conversation, UNKNOWN):
            assert await result_of_sending(client, parent_message_id=parent) == not_taken("A turn is running")

        assert await client.everything() == before
        parley_model.release()
