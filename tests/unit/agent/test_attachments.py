"""Images on the server's disk that a message names."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from kit.model_peer import settings
from parley.agent.attachments import read_content
from parley.errors import CannotCarry
from parley.wire.images import MAX_IMAGE_BYTES
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem

PNG = b"\x89PNG\r\n\x1a\n and pixels"
JPEG = b"\xff\xd8\xff\xe0 and pixels"


def as_read(kind: str, data: bytes) -> ImageItem:
    return ImageItem(image_url=f"data:{kind};base64,{base64.b64encode(data).decode()}")


async def read(cwd: Path, *content: InputItem) -> tuple[InputItem, ...]:
    return await read_content(content, settings(cwd=str(cwd)))


async def refusal(cwd: Path, *content: InputItem) -> tuple[int, str, str]:
    with pytest.raises(CannotCarry) as refused:
        await read(cwd, *content)
    return refused.value.place, refused.value.detail, str(refused.value)


def large_image(path: Path, size: int) -> Path:
    """A file that begins like an image and takes no room on the disk."""
    path.write_bytes(PNG)
    os.truncate(path, size)
    return path


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


async def test_content_that_names_nothing_on_disk_is_left_as_it_is() -> None:
    content = (TextItem(text="hello"), ImageItem(image_url="https://example.com/a.png"))

    assert await read_content(content, settings()) is content
    assert await read_content((), settings()) == ()


async def test_an_image_that_is_missing_is_left_out(tmp_path: Path) -> None:
    content = (TextItem(text="look"), LocalImageItem(path="gone.png"))

    assert await read_content(content, settings(cwd=str(tmp_path))) == (TextItem(text="look"),)


async def test_a_message_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    place, detail, _ = await refusal(tmp_path, LocalImageItem(path="gone.png"))

    assert (place, detail) == (0, "gone.png: No such file or directory (os error 2)")


async def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_bytes(b"root:x:0:0")
    (tmp_path / "empty.png").write_bytes(b"")

    for name in ("notes.png", "empty.png"):
        assert await refusal(tmp_path, LocalImageItem(path=name)) == (
            0,
            f"{name}: not a PNG, JPEG, GIF or WebP image",
            f"content[0]: {name}: not a PNG, JPEG, GIF or WebP image",
        )


async def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
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
        "a\0b: embedded null byte",
    ]


async def test_an_image_is_read_up_to_20_mib_and_refused_beyond(tmp_path: Path) -> None:
    large_image(tmp_path / "large.png", MAX_IMAGE_BYTES)
    large_image(tmp_path / "larger.png", MAX_IMAGE_BYTES + 1)

    [image] = await read(tmp_path, LocalImageItem(path="large.png"))

    assert isinstance(image, ImageItem)
    assert isinstance(image.image_url, str)
    assert len(image.image_url) == len("data:image/png;base64,") + (MAX_IMAGE_BYTES + 2) // 3 * 4
    assert (await refusal(tmp_path, LocalImageItem(path="larger.png")))[1] == "larger.png: larger than 20 MiB"


async def test_images_that_are_too_large_together_are_refused_before_all_are_read(tmp_path: Path) -> None:
    large_image(tmp_path / "large.png", MAX_IMAGE_BYTES)

    place, detail, _ = await refusal(tmp_path, *[LocalImageItem(path="large.png")] * 100_000)

    assert (place, detail) == (2, "the images of a message exceed 50 MiB in all")
