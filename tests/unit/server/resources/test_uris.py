"""The addresses of resources."""

from __future__ import annotations

import pytest

from parley.server.errors import UnknownResource
from parley.server.resources.uris import TEMPLATES, Address, ResourceKind, address_of, transcript_uri
from parley.wire.ids import ConversationId

ID = ConversationId("0d9a1b8e-6a53-49cb-bd0f-6a3a1a1f6a01")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("parley://conversations", Address(ResourceKind.CONVERSATIONS, None)),
        (f"parley://conversations/{ID}", Address(ResourceKind.TRANSCRIPT, ID)),
        (f"parley://conversations/{ID}/json", Address(ResourceKind.EVENTS, ID)),
        (f"parley://conversations/{ID}/diff", Address(ResourceKind.DIFF, ID)),
    ],
)
def test_an_address_has_one_meaning(uri: str, address: Address) -> None:
    assert address_of(uri) == address


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "parley://",
        "parley://conversations/",
        "parley://conversations\n",
        f"parley://conversations/{ID}\n",
        f"parley://conversations/{ID}/",
        f"parley://conversations/{ID}/DIFF",
        f"parley://conversations/{ID}/../{ID}",
        f"parley://conversations/{ID.upper()}",
        "parley://conversations/x",
        f"file:///conversations/{ID}",
    ],
)
def test_no_other_address_is_known(uri: str) -> None:
    with pytest.raises(UnknownResource):
        address_of(uri)


def test_each_template_gives_addresses_that_are_known() -> None:
    kinds = [address_of(one.uri_template.replace("{id}", ID)).kind for one in TEMPLATES]

    assert kinds == [ResourceKind.TRANSCRIPT, ResourceKind.EVENTS, ResourceKind.DIFF]
    assert [one.mime_type for one in TEMPLATES] == [kind.mime_type for kind in kinds]
    assert transcript_uri(ID) == TEMPLATES[0].uri_template.replace("{id}", ID)
