"""Images and files in messages: how each API gets them, and which are refused."""

from __future__ import annotations

import base64
from typing import Any, Final
from uuid import uuid4

import pytest

from kit.builders.images import JPEG, PNG, as_data_url, large_png
from kit.clients.codex_calls import Assistant, User, history
from kit.clients.messages import APIS, EITHER_API, TASK_STARTED, answered, failed, spoken
from kit.clients.wire_client import WireClient, speaking
from parley.conversation.history import REFUSED
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.render import Api
from parley.wire.images import MAX_IMAGE_BYTES
from parley.wire.mcp import FULL_VERSION

PDF: Final = base64.b64encode(b"%PDF-1.7 and so on").decode()
NOTES: Final = base64.b64encode(b"- milk\n").decode()
TABLE: Final = base64.b64encode(b"PK\3\4\0\0 and so on").decode()


FROM_LOCAL = {"principal": "local"}


def _url(kind: str, content: bytes) -> str:
    return as_data_url(f"image/{kind}", content)


def _text(words: str) -> Any:
    return {"type": "text", "text": words}


def _image(url: str, **more: str) -> Any:
    return {"type": "image", "image_url": url, **more}


def _local(path: object) -> Any:
    return {"type": "local_image", "path": str(path)}


def _file(**source: str) -> Any:
    return {"type": "file", **source}


# --- messages and requests to the model ----------------------------------------------------------


def _send(speaker: WireClient, conversation: str, *content: Any, **more: Any) -> int:
    return speaker.call("conversationSendMessage", conversation_id=conversation, content=content, **more)


async def _say(speaker: WireClient, conversation: str, *content: Any, **more: Any) -> None:
    """Send a message that is accepted, and wait for the end of its turn."""
    assert (await speaker.value_of(_send(speaker, conversation, *content, **more)))["status"] == "ok"
    await speaker.over(conversation)


def _asked(speaker: WireClient, number: int = -1) -> list[Any]:
    """Return the input of a model request, by default the latest, beginning with the first message of the user."""
    asked = speaker.model.requests[number].body
    return list(asked["messages"][2:] if "messages" in asked else asked["input"][1:])


def _user(api: Api, *parts: Any) -> Any:
    """Return a message of the user in the format of the API."""
    if api == "chat":
        return {"role": "user", "content": [*parts]}
    return {"type": "message", "id": None, "role": "user", "content": [*parts]}


def _text_part(api: Api, words: str) -> Any:
    return {"type": "text" if api == "chat" else "input_text", "text": words}


def _image_part(api: Api, url: str, **detail: str) -> Any:
    if api == "chat":
        return {"type": "image_url", "image_url": {"url": url, **detail}}
    return {"type": "input_image", "image_url": url, **detail}


def _file_part(api: Api, **source: str) -> Any:
    return {"type": "file", "file": source} if api == "chat" else {"type": "input_file", **source}


# --- images --------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
async def test_images_by_address_stand_between_the_words_in_the_order_in_which_they_were_sent(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as speaker:
        conversation = await speaker.create()
        await _say(
            speaker,
            conversation,
            _text("First text"),
            _image("data:image/png;base64,AAAA"),
            _text("Second text"),
            *(_image("https://example.invalid/a.png", detail=detail) for detail in ("low", "high", "auto")),
        )

        assert _asked(speaker) == [
            _user(
                api,
                _text_part(api, "First text"),
                _image_part(api, "data:image/png;base64,AAAA"),
                _text_part(api, "Second text"),
                *(
                    _image_part(api, "https://example.invalid/a.png", detail=detail)
                    for detail in ("low", "high", "auto")
                ),
            )
        ]


@pytest.mark.parametrize("api", EITHER_API)
async def test_local_images_are_read_and_unreadable_ones_are_left_out(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as speaker:
        work = speaker.work
        (work / "sub").mkdir()
        (work / "dot.png").write_bytes(PNG)
        (work / "sub/photo.txt").write_bytes(JPEG)
        conversation = await speaker.create()
        await _say(
            speaker,
            conversation,
            _text("See "),
            _local("dot.png"),
            _local("missing.png"),
            _local(work / "sub/photo.txt"),
            _local("sub"),
            _local("a\0b.png"),
            _local("x" * 5000),
            _local(""),
            _text("there"),
        )
        (work / "dot.png").unlink()  # the server read the file when the message was sent
        await _say(speaker, conversation, _text("Again"))

    seen = _user(
        api,
        _text_part(api, "See "),
        _image_part(api, _url("png", PNG)),
        _image_part(api, _url("jpeg", JPEG)),
        _text_part(api, "there"),
    )
    assert _asked(speaker, 0) == [seen]
    assert _asked(speaker, 1) == [seen, *history(api, Assistant("Done"), User("Again"))]


@pytest.mark.parametrize("name", ["words.png", "half.png", "large.png"])
async def test_a_file_that_is_no_image_for_a_model_is_refused_by_its_place(
    parley_model: ScriptedModel, name: str
) -> None:
    async with speaking(parley_model) as speaker:
        (speaker.work / "words.png").write_text("just words")
        (speaker.work / "half.png").write_bytes(PNG[:-20])
        (speaker.work / "large.png").write_bytes(large_png(MAX_IMAGE_BYTES + 1))
        conversation = await speaker.create()
        content = [_text("See "), _local(name)]
        request = speaker.call("conversationSendMessage", conversation_id=conversation, content=content)
        error = (await speaker.value_of(request))["message"]

    why = "larger than 20 MiB" if name == "large.png" else "not a PNG, JPEG, GIF or WebP image"
    assert error == f"content[1]: {name}: {why}"
    assert parley_model.requests == []


@pytest.mark.parametrize("api", EITHER_API)
async def test_words_are_sent_as_ever_when_no_image_is_left(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as speaker:
        await _say(speaker, await speaker.create(), _local("missing.png"), _text("Just words"))

        assert _asked(speaker) == history(api, User("Just words"))


async def test_the_path_of_an_image_is_read_from_the_directory_that_the_message_sets(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as speaker:
        other = speaker.work / "other"
        other.mkdir()
        (speaker.work / "dot.png").write_bytes(JPEG)
        (other / "dot.png").write_bytes(PNG)
        await _say(speaker, await speaker.create(), _local("dot.png"), cwd=str(other))

        assert _asked(speaker) == [_user("chat", _image_part("chat", _url("png", PNG)))]


# --- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
async def test_files_are_sent_by_the_ways_that_the_api_has(parley_model: ScriptedModel, api: Api) -> None:
    content = [
        _text("Read"),
        _file(file_id="file-1"),
        _file(file_data=PDF, filename="a.pdf"),
        _file(file_data=NOTES, filename="list.md"),
    ]
    expected = [
        _text_part(api, "Read"),
        _file_part(api, file_id="file-1"),
        _file_part(api, file_data=f"data:application/pdf;base64,{PDF}", filename="a.pdf"),
    ]
    if api == "chat":
        expected += [_text_part(api, "File list.md:\n\n- milk\n")]
    else:
        content += [
            _file(file_data=TABLE, filename="table.xlsx"),
            _file(file_url="https://example.invalid/a.pdf"),
            {"type": "image", "file_id": "file-2", "detail": "low"},
        ]
        sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
        expected += [
            _file_part(api, file_data=f"data:text/markdown;base64,{NOTES}", filename="list.md"),
            _file_part(api, file_data=f"data:{sheet};base64,{TABLE}", filename="table.xlsx"),
            _file_part(api, file_url="https://example.invalid/a.pdf"),
            {"type": "input_image", "file_id": "file-2", "detail": "low"},
        ]
    async with speaking(parley_model, api=api) as speaker:
        await _say(speaker, await speaker.create(), *content)

        assert _asked(speaker) == [_user(api, *expected)]


async def test_an_item_that_another_api_does_not_support_is_replaced_by_its_name(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, api="responses") as speaker:
        conversation = await speaker.create()
        file_data = _file(file_data=TABLE, filename="table.xlsx")
        await _say(speaker, conversation, _text("Read"), _file(file_url="https://example.invalid/a.pdf"), file_data)
        await _say(speaker, conversation, _text("And now?"), config={"model_provider": "chat"})

    left_out = [
        _text_part("chat", f"[Left out: {what} cannot be sent over the chat API.]")
        for what in ("a file by URL", "the file table.xlsx")
    ]
    assert parley_model.requests[-1].path.endswith("/chat/completions")
    assert _asked(speaker) == [
        _user("chat", _text_part("chat", "Read"), *left_out),
        *history("chat", Assistant("Done"), User("And now?")),
    ]


# --- refused items -----------------------------------------------------------------------------

REFUSED_BY_ALL: Final = (
    ({"type": "image"}, "an image needs one of `image_url`, `file_id`"),
    ({"type": "image", "image_url": ""}, "the `image_url` of an image is empty"),
    ({"type": "image", "image_url": None, "file_id": None}, "an image needs one of `image_url`, `file_id`"),
    (
        {"type": "image", "image_url": "https://example.invalid/a.png", "file_id": "file-1"},
        "an image cannot have `image_url` and `file_id` at once",
    ),
    (_file(), "a file needs one of `file_url`, `file_id`, `file_data`"),
    (_file(filename="a.txt"), "a file needs one of `file_url`, `file_id`, `file_data`"),
    (_file(file_id=""), "the `file_id` of a file is empty"),
    (_file(file_id="file-1", file_data=PDF), "a file cannot have `file_id` and `file_data` at once"),
    (_file(file_data=PDF), "a file with `file_data` needs a `filename`"),
    (_file(file_data="not base64!", filename="a.pdf"), "the `file_data` of a file must be base64"),
)
REFUSED_BY_CHAT: Final = (
    ({"type": "image", "file_id": "file-1"}, "an image by file id cannot be sent over the chat API"),
    (
        {"type": "image", "file_id": "file-1", "detail": "high"},
        "an image by file id cannot be sent over the chat API",
    ),
    (_file(file_url="https://example.invalid/a.pdf"), "a file by URL cannot be sent over the chat API"),
    (
        _file(file_data=TABLE, filename="table.xlsx"),
        "the file table.xlsx cannot be sent over the chat API, which takes only text and PDF",
    ),
)


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_message_with_an_item_that_cannot_be_sent_is_refused_and_nothing_has_happened(
    parley_model: ScriptedModel, api: Api
) -> None:
    refused = REFUSED_BY_ALL + (REFUSED_BY_CHAT if api == "chat" else ())
    async with speaking(parley_model, api=api, version=FULL_VERSION) as speaker:
        conversation = await speaker.create()
        _, snapshot = await speaker.open_stream(conversation)
        message_id = str(uuid4())
        for item, why in refused:
            request_id = _send(speaker, conversation, _text("See"), item, message_id=message_id)
            assert await speaker.read() == failed(request_id, f"content[1]: {why}", "unsupported_content")
        assert await speaker.meanwhile() == []

        # The refused message has not used the id, and the first event belongs to the accepted message.
        request_id = _send(speaker, conversation, _text("See"), message_id=message_id)
        assert await speaker.read() == answered(request_id, {"status": "ok", "message_id": message_id})
        turn = await speaker.until_method("task_complete")

    said = {"type": "user_message", "message_id": message_id, "content": [_text("See")], **FROM_LOCAL}
    started, *rest = spoken(api, "Done")
    assert [one["params"]["msg"] for one in turn] == [started, said, *rest]
    assert turn[0]["params"]["_meta"]["seq"] > snapshot["params"]["_meta"]["seq"]
    assert [_asked(speaker, number) for number in range(len(parley_model.requests))] == [history(api, User("See"))]


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_message_of_which_nothing_is_left_is_refused(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as speaker:
        (speaker.work / "words.png").write_text("just words")
        conversation = await speaker.create()
        await speaker.open_stream(conversation)
        message_id = str(uuid4())
        whys = {
            ("missing.png",): "content[0]: missing.png: No such file or directory (os error 2)",
            ("words.png",): "content[0]: words.png: not a PNG, JPEG, GIF or WebP image",
            ("missing.png", "words.png"): "content[1]: words.png: not a PNG, JPEG, GIF or WebP image",
        }
        for paths, why in whys.items():
            request_id = _send(speaker, conversation, *map(_local, paths), message_id=message_id)
            assert await speaker.read() == failed(request_id, why, "unsupported_content")
        assert await speaker.meanwhile() == []

        (speaker.work / "missing.png").write_bytes(PNG)
        request_id = _send(speaker, conversation, _local("missing.png"), message_id=message_id)
        assert await speaker.read() == answered(request_id, {"status": "ok", "message_id": message_id})
        await speaker.until_method("task_complete")

    assert [_asked(speaker, number) for number in range(len(parley_model.requests))] == [
        [_user(api, _image_part(api, _url("png", PNG)))]
    ]


async def test_an_item_is_refused_by_its_own_place_also_after_one_that_is_left_out(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as speaker:
        conversation = await speaker.create()
        request_id = _send(
            speaker,
            conversation,
            _local("missing.png"),
            _text("See"),
            _file(file_url="https://example.invalid/a.pdf"),
        )
        answer = await speaker.read()

    assert answer == failed(request_id, "content[2]: a file by URL cannot be sent over the chat API")
    assert parley_model.requests == []


async def test_images_that_are_too_much_together_are_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as speaker:
        (speaker.work / "large.png").write_bytes(large_png(MAX_IMAGE_BYTES))
        conversation = await speaker.create()
        request_id = _send(speaker, conversation, _text("See"), *[_local("large.png")] * 3)
        answer = await speaker.read()

    why = "content[2]: the images and files of a message exceed 48 MB of base64 in all"
    assert answer == failed(request_id, why)
    assert parley_model.requests == []


async def test_items_of_another_shape_are_no_arguments(parley_model: ScriptedModel) -> None:
    kinds = "`text`, `image`, `local_image`, `file`"
    whys: tuple[tuple[Any, str], ...] = (
        ({"type": "video"}, f"unknown variant `video`, expected one of {kinds} (content[1].type)"),
        ({}, "missing field `type` (content[1])"),
        ({"type": "local_image"}, "missing field `path` (content[1])"),
        ({"type": "image", "image_url": 7}, "invalid type: integer `7`, expected a string (content[1].image_url)"),
        (
            _image("https://example.invalid/a.png", detail="huge"),
            "unknown variant `huge`, expected one of `low`, `high`, `auto` (content[1].detail)",
        ),
    )
    async with speaking(parley_model) as speaker:
        conversation = await speaker.create()
        for item, why in whys:
            request_id = _send(speaker, conversation, _text("See"), item)
            text = f"Failed to parse arguments for conversationSendMessage: {why}"
            assert await speaker.read() == failed(request_id, text)
    assert parley_model.requests == []


# --- other clients, and joining ------------------------------------------------------------------


@pytest.mark.parametrize("api", EITHER_API)
async def test_clients_see_the_message_as_sent_and_not_the_files_that_were_read(
    parley_model: ScriptedModel, api: Api
) -> None:
    content = [
        _text("See"),
        _image("https://example.invalid/a.png", detail="low"),
        _local("dot.png"),
        _local("missing.png"),
        _file(file_data=PDF, filename="a.pdf"),
    ]
    async with speaking(parley_model, api=api, version=FULL_VERSION) as speaker:
        (speaker.work / "dot.png").write_bytes(PNG)
        conversation = await speaker.create()
        await speaker.open_stream(conversation)
        message_id = str(uuid4())
        request_id = _send(speaker, conversation, *content, message_id=message_id)
        answer = await speaker.read()
        turn = await speaker.until_method("task_complete")
        late = speaker.stream(conversation)
        *_, snapshot = await speaker.until_method("notifications/initial_state")

    said = {"type": "user_message", "message_id": message_id, "content": content, **FROM_LOCAL}
    started, *rest = spoken(api, "Done")
    assert answer == answered(request_id, {"status": "ok", "message_id": message_id})
    assert [one["params"]["msg"] for one in turn] == [started, said, *rest]
    assert late == request_id + 1
    remaining = [one for one in (started, said, *rest) if one["type"] != "agent_message_delta"]
    assert [one["msg"] for one in snapshot["params"]["initial_state"]["events"]] == remaining


async def test_a_message_that_is_sent_again_is_known_by_what_was_sent(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as speaker:
        (speaker.work / "dot.png").write_bytes(PNG)
        conversation = await speaker.create()
        message_id = str(uuid4())
        await _say(speaker, conversation, _local("dot.png"), message_id=message_id)
        (speaker.work / "dot.png").unlink()
        again = _send(speaker, conversation, _local("dot.png"), message_id=message_id)
        first = await speaker.read()
        other = _send(speaker, conversation, _local("other.png"), message_id=message_id)
        second = await speaker.read()

    assert first == answered(again, {"status": "ok", "message_id": message_id})
    assert second == failed(other, "Message id was used for another message", "message_id_taken")
    assert len(parley_model.requests) == 1


@pytest.mark.parametrize("api", EITHER_API)
async def test_an_image_that_joins_a_turn_comes_after_the_outputs_of_the_response_it_waited_for(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says(HOLD, Call("look", "{}", "c1"))
    async with speaking(parley_model, api=api, version=FULL_VERSION) as speaker:
        (speaker.work / "dot.png").write_bytes(PNG)
        conversation = await speaker.create()
        await speaker.open_stream(conversation)
        await speaker.say(conversation, "First")
        await speaker.until_method("user_message")
        await parley_model.wait_until_held()

        refused = _send(speaker, conversation, _text("and"), _image(""))
        assert await speaker.read() == failed(
            refused, "content[1]: the `image_url` of an image is empty", "unsupported_content"
        )
        message_id = str(uuid4())
        taken = _send(speaker, conversation, _text("and"), _local("dot.png"), message_id=message_id)
        assert await speaker.read() == answered(taken, {"status": "ok", "message_id": message_id})
        parley_model.release()
        turn = await speaker.until_method("task_complete")

    content = [_text("and"), _local("dot.png")]
    said = {"type": "user_message", "message_id": message_id, "content": content, **FROM_LOCAL}
    assert turn[0]["params"]["msg"] == said
    assert TASK_STARTED not in [one["params"]["msg"] for one in turn]
    first, second = (_asked(speaker, number) for number in (0, 1))
    assert first == history(api, User("First"))
    assert [second[0], second[-1]] == [
        *first,
        _user(api, _text_part(api, "and"), _image_part(api, _url("png", PNG))),
    ]
    assert len(second) == 4  # the call and its output are between the messages


@pytest.mark.promises("context.refused")
@pytest.mark.parametrize("api", APIS)
async def test_an_image_that_the_provider_refuses_is_not_sent_again(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        conversation = await client.create()
        parley_model.fails(400, body="no such image")
        content = [{"type": "text", "text": "look"}, {"type": "image", "image_url": "https://example.com/a.png"}]
        await client.value_of(client.call("conversationSendMessage", conversation_id=conversation, content=content))
        await client.over(conversation)
        await client.say(conversation, "never mind")
        await client.over(conversation)

        first, second = (str(request.body) for request in parley_model.requests)
        assert "https://example.com/a.png" in first
        assert "https://example.com/a.png" not in second
        assert REFUSED.strip() in second
