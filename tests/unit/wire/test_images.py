"""Images are told apart by their first bytes."""

from __future__ import annotations

import base64

import pytest

from parley.wire.images import data_url, image_type

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF"
GIF_87, GIF_89 = b"GIF87a\x01\x00", b"GIF89a\x01\x00"
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 "


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (GIF_87, "image/gif"),
        (GIF_89, "image/gif"),
        (WEBP, "image/webp"),
        (b"", None),
        (PNG[:7], None),
        (b"\xff\xd8", None),
        (b"GIF88a", None),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", None),
        (b"RIFF", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----", None),
        (b"%PDF-1.7", None),
    ],
)
def test_an_image_is_known_by_its_first_bytes(data: bytes, kind: str | None) -> None:
    assert image_type(data) == kind


@pytest.mark.parametrize(("data", "kind"), [(PNG, "png"), (JPEG, "jpeg"), (GIF_89, "gif"), (WEBP, "webp")])
def test_a_data_url_holds_the_image_and_names_its_type(data: bytes, kind: str) -> None:
    assert data_url(data) == f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def test_there_is_no_data_url_of_something_else() -> None:
    with pytest.raises(ValueError, match="neither PNG nor JPEG, GIF or WebP"):
        data_url(b"#!/bin/sh\n")
