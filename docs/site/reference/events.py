"""The reference page of the events, from their structs."""

from __future__ import annotations

import msgspec
from docs.site.reference.docstrings import paragraphs
from docs.site.reference.types import field_table, inner_structs
from msgspec import Struct

from parley.wire.events import EVENT_TYPES, NEVER_SENT

__all__ = ["events_page"]

_HEAD = """\
# Types of events

The fields of each event with their types. [Events](../events.md) describes the events and the order in which
they come. `parley schema events` prints the JSON Schemas.
"""


def events_page() -> str:
    """Return the page as Markdown."""
    sent = {kind: struct for kind, struct in EVENT_TYPES.items() if kind not in NEVER_SENT}
    inner = [struct for struct in inner_structs(sent.values()) if struct not in EVENT_TYPES.values()]
    return "\n".join(
        [
            _HEAD,
            *(
                f"## `{kind}`\n\n{_body(struct)}[Description](../events.md#{kind})\n"
                for kind, struct in sent.items()
            ),
            "## Types\n",
            *(f"### `{one.__name__}`\n\n{_body(one)}" for one in sorted(inner, key=lambda one: one.__name__)),
        ]
    )


def _body(struct: type[Struct]) -> str:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    is_event = struct in EVENT_TYPES.values()
    tag = "" if is_event or not info.tag else f"`{info.tag_field}` is `{info.tag}`.\n\n"
    return f"{paragraphs(struct.__doc__)}\n\n{tag}{field_table(struct) or 'There are no fields.'}\n"
