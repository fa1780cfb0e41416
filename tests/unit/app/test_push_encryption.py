"""The cryptography of Web Push, checked with the example of RFC 8291 and with a browser that decrypts."""

from __future__ import annotations

import pytest

from kit.servers.push_service import SubscribedBrowser, claims_of, decoded
from parley.app.push_encryption import (
    VALID_SECONDS,
    SenderKey,
    decode_base64url,
    encode_base64url,
    encrypted,
    is_public_key,
)

EXAMPLE = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl"
    "7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)
"""The message in section 5 of RFC 8291."""


def browser_of_the_example() -> SubscribedBrowser:
    private = int.from_bytes(decoded("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"), "big")
    return SubscribedBrowser("https://push.example", private=private, secret=decoded("BTBZMqHH6r4Tts7J_aSIgg"))


def test_the_browser_of_the_tests_reads_the_example_of_the_standard() -> None:
    browser = browser_of_the_example()

    assert browser.decrypted(decoded(EXAMPLE)) == b"When I grow up, I want to be a watermelon"


def test_only_the_browser_reads_a_message_and_no_two_messages_are_equal() -> None:
    browser = browser_of_the_example()
    messages = [encrypted(b"an id", receiver=browser.public, secret=browser.secret) for _ in range(2)]

    assert [browser.decrypted(message) for message in messages] == [b"an id"] * 2
    assert messages[0][:16] != messages[1][:16]
    assert b"an id" not in messages[0]
    assert messages[0][16:21] == b"\x00\x00\x10\x00\x41"


def test_a_sender_key_follows_from_the_key_of_the_home() -> None:
    one, again, other = SenderKey(b"k" * 32), SenderKey(b"k" * 32), SenderKey(b"o" * 32)
    authorization = one.authorization("https://push.example", "https://parley.example", 1000.5)

    claims, public = claims_of(authorization)
    assert one.public == again.public == public != other.public
    assert is_public_key(decode_base64url(one.public))
    assert claims == {"aud": "https://push.example", "exp": 1000 + VALID_SECONDS, "sub": "https://parley.example"}


@pytest.mark.parametrize("point", [b"", b"\x04" + bytes(64), b"\x04" * 65, b"\x02" + bytes(32), b"\0"])
def test_other_bytes_are_no_public_key(point: bytes) -> None:
    assert not is_public_key(point)


def test_a_compressed_point_is_no_public_key() -> None:
    point = browser_of_the_example().public

    assert is_public_key(point)
    assert not is_public_key(bytes([2 + point[-1] % 2]) + point[1:33])


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xfb\xff", bytes(range(64))])
def test_base64url_is_read_with_and_without_padding(data: bytes) -> None:
    text = encode_base64url(data)

    assert decode_base64url(text) == decode_base64url(text + "=" * (-len(text) % 4)) == data


@pytest.mark.parametrize("text", ["a", "a b c", "é", "ab\n"])
def test_other_texts_are_not_base64url(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64url(text)
