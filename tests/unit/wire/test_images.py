"""Images are recognised by their content, and accepted if they are complete."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from kit.builders.images import GIF, IMAGES, JPEG, PNG, WEBP, as_data_url, large_png
from parley.wire.images import MAX_IMAGE_BYTES, data_url, image_type

checked.register_profile("images", deadline=None)
anyhow = checked(checked.get_profile("images"))

KINDS = list(IMAGES)


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def webp(*chunks: bytes) -> bytes:
    content = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(content)) + content


SMALL = b"\x30\x01\0\x9d\x01\x2a\1\0\1\0\x0e\xc0\xfe\x25\xa4\0\x03\x70\0\0\0\0"
"""A lossy WebP image of one pixel."""
LOSSLESS = WEBP[20:]
EXTENDED = chunk(b"VP8X", bytes(10))
COMMENT = b"!\xfe\x05hello\0"
SCREEN = 19
"""The offset of the first block of the GIF, after its size and its two colours."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_known_by_its_bytes(kind: str) -> None:
    assert image_type(IMAGES[kind]) == kind


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG + b"what an editor left behind", "image/png"),
        (JPEG + bytes(70_000) + b"ftypmp42", "image/jpeg"),
        (GIF + bytes(10), "image/gif"),
        (GIF[:-1], "image/gif"),  # many images lack the end marker
        (GIF.replace(b"89a", b"87a"), "image/gif"),
        (GIF[:SCREEN] + COMMENT + GIF[SCREEN:], "image/gif"),
        (JPEG[:2] + b"\xff\xff\xff" + JPEG[2:], "image/jpeg"),  # padding between segments
        (JPEG[:2] + b"\xff\xe1\0\x06\xff\xd8\xff\xd9" + JPEG[2:], "image/jpeg"),  # with an embedded thumbnail
        (JPEG.replace(b"\xff\xc0", b"\xff\xc2"), "image/jpeg"),  # progressive
        (WEBP + b"\0", "image/webp"),
        (webp(chunk(b"VP8 ", SMALL)), "image/webp"),
        (webp(EXTENDED, chunk(b"ICCP", b"odd"), chunk(b"VP8L", LOSSLESS)), "image/webp"),
        (webp(EXTENDED, chunk(b"ANIM", bytes(6)), chunk(b"ANMF", bytes(40))), "image/webp"),
    ],
)
def test_an_image_may_be_written_in_many_ways(data: bytes, kind: str) -> None:
    assert image_type(data) == kind


def with_header(**changes: int) -> bytes:
    """Return the PNG with another size and a correct checksum."""
    header = b"IHDR" + struct.pack(">II", changes.get("width", 1), changes.get("height", 1)) + PNG[24:29]
    return PNG[:12] + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n and so on",
        with_header(width=0),
        with_header(height=0),
        PNG[:33] + PNG[-12:],
        PNG[:33] + PNG[-12:] + PNG[33:-12],
        b"\xff\xd8",
        b"\xff\xd8\xff\xe0 and so on",
        JPEG[:2] + JPEG,
        JPEG[:2] + b"\xff\xd9" + JPEG[2:],
        JPEG.replace(b"\xff\xc0", b"\xff\xe2"),
        JPEG.replace(b"\xff\xc0\0\x0b\x08\0\1\0\1", b"\xff\xc0\0\x0b\x08\0\0\0\1"),
        JPEG.replace(b"\xff\xc0\0\x0b\x08\0\1\0\1", b"\xff\xc0\0\x0b\x08\0\1\0\0"),
        b"GIF88a" + GIF[6:],
        b"GIF89a and so on",
        GIF[:6] + b"\0\0" + GIF[8:],
        GIF[:8] + b"\0\0" + GIF[10:],
        GIF[:SCREEN] + b";",
        GIF[:SCREEN] + COMMENT + b";",
        b"RIFF",
        b"RIFF\x10\0\0\0WEBPVP8 and so on",
        b"RIFF\x14\0\0\0WAVE" + WEBP[12:],
        WEBP + b"\0\0",
        webp(),
        webp(EXTENDED),
        webp(chunk(b"VP8 ", bytes(10))),
        webp(chunk(b"VP8 ", b"")),
        webp(chunk(b"VP8L", b"")),
        webp(chunk(b"VP8L", b"\x2e" + LOSSLESS[1:])),
        webp(b"VP8L\xff\xff\xff\xff" + LOSSLESS),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"-----BEGIN OPENSSH PRIVATE KEY-----",
        b"%PDF-1.7",
    ],
)
def test_broken_images_and_other_data_are_not_images(data: bytes) -> None:
    assert image_type(data) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_was_cut_off_is_none(kind: str) -> None:
    whole = IMAGES[kind].removesuffix(b";")

    assert [size for size in range(len(whole)) if image_type(whole[:size]) is not None] == []


@given(
    beginning=st.sampled_from([image[:size] for image in IMAGES.values() for size in range(len(image) + 1)]),
    rest=st.binary(max_size=60),
    place=st.integers(min_value=0, max_value=200),
)
@anyhow
def test_whatever_bytes_there_are_they_are_an_image_or_none(beginning: bytes, rest: bytes, place: int) -> None:
    for data in (rest, beginning + rest, beginning[:place] + rest + beginning[place:]):
        assert image_type(data) in (None, *KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "filling", [b"\0", b"\1", b"\xff", b"\xff\0", b"\xff\xe0\0\2", b"IDA", b"!\0\0", b"\0\0\0\0IEN"]
)
def test_an_image_without_end_is_given_up(kind: str, filling: bytes) -> None:
    """A check that reads each byte would take minutes."""
    beginning = {"image/png": PNG[:33], "image/jpeg": JPEG[:2], "image/gif": GIF[:SCREEN]}.get(
        kind, b"RIFF\xf8\xff\x3f\1WEBP"
    )
    data = (beginning + filling * (MAX_IMAGE_BYTES // len(filling)))[:MAX_IMAGE_BYTES]

    assert image_type(data) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_url_holds_the_image_and_names_its_type(kind: str) -> None:
    assert data_url(IMAGES[kind]) == as_data_url(kind, IMAGES[kind])
    assert base64.b64decode(data_url(IMAGES[kind]).partition(",")[2]) == IMAGES[kind]


def test_there_is_no_data_url_of_something_else() -> None:
    with pytest.raises(ValueError, match="not a PNG, JPEG, GIF or WebP image"):
        data_url(b"#!/bin/sh\n")


def test_there_is_no_data_url_of_too_much() -> None:
    assert data_url(large_png(MAX_IMAGE_BYTES)).startswith("data:image/png;base64,")
    with pytest.raises(ValueError, match="larger than 20 MiB"):
        data_url(large_png(MAX_IMAGE_BYTES + 1))
