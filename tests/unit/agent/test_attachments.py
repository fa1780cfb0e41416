"""Local images in messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.builders.images import JPEG, PNG, as_data_url, large_png
from kit.builders.records import call
from kit.models.raw_provider import settings
from parley.agent.attachments import limit_attachments, read_content
from parley.agent.prompt import request_for
from parley.config.types import Sandbox
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import MessageItem
from parley.errors import UnsupportedContent
from parley.wire.images import MAX_IMAGE_BYTES
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem


def as_read(kind: str, data: bytes) -> ImageItem:
    return ImageItem(image_url=as_data_url(kind, data))


async def read(cwd: Path, *content: InputItem) -> tuple[InputItem, ...]:
    return await read_content(content, settings(cwd=str(cwd)))


async def refusal(cwd: Path, *content: InputItem) -> tuple[int, str, str]:
    with pytest.raises(UnsupportedContent) as refused:
        await read(cwd, *content)
    return refused.value.place, refused.value.detail, str(refused.value)


async def test_named_images_are_read_in_their_places(tmp_path: Path) -> None:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "a.png").write_bytes(PNG)
    elsewhere = tmp_path / "photo"
    elsewhere.write_bytes(JPEG)
    (tmp_path / ".link").symlink_to(elsewhere)
    rest = (TextItem(text="Compare:"), FileItem(file_id="file-1"), ImageItem(image_url="https://example.com/a.png"))

    content = await read(
        tmp_path / "shots",
        LocalImageItem(path="a.png"),
        rest[0],
        LocalImageItem(path=str(elsewhere)),
        rest[1],
        LocalImageItem(path="../.link"),
        rest[2],
    )

    photo = as_read("image/jpeg", JPEG)
    assert content == (as_read("image/png", PNG), rest[0], photo, rest[1], photo, rest[2])


async def test_content_without_local_files_is_not_changed() -> None:
    content = (TextItem(text="hello"), ImageItem(image_url="https://example.com/a.png"))

    assert await read_content(content, settings()) is content
    assert await read_content((), settings()) == ()


async def test_an_image_that_is_missing_is_left_out(tmp_path: Path) -> None:
    content = (TextItem(text="look"), LocalImageItem(path="gone.png"))

    assert await read_content(content, settings(cwd=str(tmp_path))) == (TextItem(text="look"),)


async def test_an_image_where_secrets_lie_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "shot.png").write_bytes(PNG)
    (tmp_path / "link.png").symlink_to("keys/shot.png")
    chosen = settings(cwd=str(tmp_path), sandbox=Sandbox(hidden_paths=(f"{tmp_path}/keys",)))

    for name in ("keys/shot.png", "link.png", f"{tmp_path}/keys/../keys/shot.png"):
        content = (TextItem(text="look"), LocalImageItem(path=name))
        assert await read_content(content, chosen) == (TextItem(text="look"),)
    with pytest.raises(UnsupportedContent) as refused:
        await read_content((LocalImageItem(path="link.png"),), chosen)
    assert refused.value.detail == "link.png: access is not allowed"


async def test_a_message_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    place, detail, _ = await refusal(tmp_path, LocalImageItem(path="gone.png"))

    assert (place, detail) == (0, "gone.png: No such file or directory (os error 2)")


async def test_a_file_that_is_not_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_bytes(b"root:x:0:0")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "half.png").write_bytes(PNG[:-1])

    for name in ("notes.png", "empty.png", "half.png"):
        assert await refusal(tmp_path, LocalImageItem(path=name)) == (
            0,
            f"{name}: not a PNG, JPEG, GIF or WebP image",
            f"content[0]: {name}: not a PNG, JPEG, GIF or WebP image",
        )


async def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")

    details = [
        (await refusal(tmp_path, LocalImageItem(path=path)))[1]
        for path in ("pipe.png", "/dev/zero", ".", "", "a\0b")
    ]

    assert details == [
        "pipe.png: not a regular file",
        "/dev/zero: not a regular file",
        ".: Is a directory (os error 21)",
        ": Is a directory (os error 21)",
        "a\0b: not a valid file path",
    ]


async def test_an_image_is_read_up_to_20_mib_and_refused_beyond(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(large_png(MAX_IMAGE_BYTES))
    (tmp_path / "larger.png").write_bytes(large_png(MAX_IMAGE_BYTES + 1))

    [image] = await read(tmp_path, LocalImageItem(path="large.png"))

    assert isinstance(image, ImageItem)
    assert isinstance(image.image_url, str)
    assert len(image.image_url) == len("data:image/png;base64,") + (MAX_IMAGE_BYTES + 2) // 3 * 4
    assert (await refusal(tmp_path, LocalImageItem(path="larger.png")))[1] == "larger.png: larger than 20 MiB"


TOO_MUCH = "the images and files of a message exceed 48 MB of base64 in all"


async def test_images_that_are_too_large_together_are_refused_before_all_are_read(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(large_png(MAX_IMAGE_BYTES))

    place, detail, _ = await refusal(tmp_path, *[LocalImageItem(path="large.png")] * 100_000)

    assert (place, detail) == (1, TOO_MUCH)


async def test_attached_and_local_images_count_alike(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    half = "A" * 24_000_000
    file, image = FileItem(file_data=half, filename="a.txt"), ImageItem(image_url=f"data:{half[5:]}")
    at_most = (TextItem(text=half), file, ImageItem(image_url=f"https://{half}"), image)

    assert await read(tmp_path, *at_most) == at_most
    assert (await refusal(tmp_path, *at_most, LocalImageItem(path="dot.png")))[:2] == (4, TOO_MUCH)
    assert (await refusal(tmp_path, LocalImageItem(path="dot.png"), *at_most))[:2] == (4, TOO_MUCH)
    assert (await refusal(tmp_path, *at_most, FileItem(file_data="AAAA", filename="b.txt")))[:2] == (4, TOO_MUCH)


# --- limits of a request -------------------------------------------------------------------------


def image(size: int) -> ImageItem:
    """Return an image with this many characters."""
    return ImageItem(image_url="data:image/png;base64,".ljust(size, "A"))


def said(*content: InputItem) -> UserItem:
    return UserItem(content)


def words(name: str) -> TextItem:
    return TextItem(text=f"[Left out: {name}, because newer images and files fill the request]")


def test_a_history_that_fits_is_sent_as_it_is() -> None:
    history: list[HistoryItem] = [
        said(TextItem(text="look"), image(60)),
        MessageItem(text="I see"),
        said(image(40)),
    ]

    assert limit_attachments(history, room=100) is history
    assert limit_attachments([], room=0) == []


def test_words_stand_for_the_oldest_images_and_files_that_do_not_fit() -> None:
    old = FileItem(file_data="A" * 40, filename="old.txt")
    far = ImageItem(image_url="https://example.com/" + "a" * 500), ImageItem(file_id="file-1")
    look, again = TextItem(text="look" * 100), TextItem(text="again")
    between: list[HistoryItem] = [call("c1"), OutputItem(call("c1").call_id, "x" * 500)]
    history: list[HistoryItem] = [
        said(look, old, *far),
        *between,
        said(image(50), again, image(60)),
        said(image(40)),
    ]

    assert limit_attachments(history, room=189) == [said(look, words("the file old.txt"), *far), *history[1:]]
    assert limit_attachments(history, room=149) == [
        said(look, words("the file old.txt"), *far),
        *between,
        said(words("an image"), again, image(60)),
        said(image(40)),
    ]
    assert limit_attachments(history, room=39) == [
        said(look, words("the file old.txt"), *far),
        *between,
        said(words("an image"), again, words("an image")),
        said(words("an image")),
    ]


def test_omitted_attachments_stay_omitted() -> None:
    history: list[HistoryItem] = [said(image(30)), said(image(90)), said(image(40))]

    assert limit_attachments(history[:2], room=100) == [said(words("an image")), history[1]]
    assert limit_attachments(history, room=100) == [said(words("an image")), said(words("an image")), history[2]]


@pytest.mark.promises("send.room")
def test_a_request_has_48_mb_of_images_at_most(tmp_path: Path) -> None:
    large = as_read("image/png", large_png(MAX_IMAGE_BYTES))
    history = [said(large) for _ in range(6)]

    request = request_for(settings(cwd=str(tmp_path), home=str(tmp_path)), history, ())

    assert request.history == [*[said(words("an image"))] * 5, said(large)]
