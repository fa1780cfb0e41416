"""Images that a message names."""

from __future__ import annotations

from pathlib import Path

from kit.builders.images import PNG
from kit.clients.chat_context import RecordingChat
from parley.cli.chat.attached_images import attached_images
from parley.wire.images import data_url
from parley.wire.items import ImageItem


def test_the_images_that_a_message_names_are_sent_once(tmp_path: Path) -> None:
    image = PNG
    for name in ("a.png", "b c.PNG"):
        (tmp_path / name).write_bytes(image)
    chat = RecordingChat(local_cwd=str(tmp_path))

    found = list(attached_images(chat, 'compare @a.png, @a.png and @"b c.PNG". Not x@a.png or @absent.png'))

    assert found == [ImageItem(image_url=data_url(image))] * 2
    assert chat.notes == []


def test_a_file_that_is_no_image_stays_a_text_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    chat = RecordingChat(local_cwd=str(tmp_path))

    assert list(attached_images(chat, "see @a.png and @main.py")) == []
    assert chat.notes == ["a.png is not sent as an image: not a PNG, JPEG, GIF or WebP image"]


def test_without_a_local_directory_there_are_no_images() -> None:
    assert list(attached_images(RecordingChat(local_cwd=None), "@a.png")) == []
