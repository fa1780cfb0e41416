"""The reference page of the events: the types from their structs, and the descriptions from `docs/events.md`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from docs.site.reference.docstrings import paragraphs
from docs.site.reference.types import field_table, inner_structs
from msgspec import Struct

from parley.wire.events import EVENT_TYPES, NEVER_SENT

__all__ = ["events_page"]

_HEAD = """\
# Types of events

The events with the types of their fields. [Events](../events.md) lists them by subject, and
[Turns](../protocol.md#turns) describes their order.
`parley schema events` prints the JSON Schemas.
"""


def events_page() -> str:
    """Return the page as Markdown."""
    sent = {kind: struct for kind, struct in EVENT_TYPES.items() if kind not in NEVER_SENT}
    described = _sections()
    inner = [struct for struct in inner_structs(sent.values()) if struct not in EVENT_TYPES.values()]
    return "\n".join(
        [
            _HEAD,
            *(f"## `{kind}`\n\n{_event(struct, described.get(kind, ''))}" for kind, struct in sent.items()),
            "## Types\n",
            *(f"### `{one.__name__}`\n\n{_type(one)}" for one in sorted(inner, key=lambda one: one.__name__)),
        ]
    )


def _sections() -> dict[str, str]:
    """Return the section of each event in `docs/events.md`, with links for a page in `docs/reference/`."""
    page = (Path(__file__).parents[2] / "events.md").read_text()
    page = re.sub(r"\]\((?!#|[a-z]+:)", "](../", page).replace("](#", "](../events.md#")
    return dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))


def _event(struct: type[Struct], section: str) -> str:
    """Return the text of an event: its description, and a table of its fields with their types."""
    texts = {
        name: text
        for names, text in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", section, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    prose = re.sub(r"^\|.*\n", "", section, flags=re.MULTILINE).strip()
    return f"{prose or paragraphs(struct.__doc__)}\n\n{field_table(struct, texts=texts)}\n"


def _type(struct: type[Struct]) -> str:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    tag = f"`{info.tag_field}` is `{info.tag}`.\n\n" if info.tag else ""
    return f"{paragraphs(struct.__doc__)}\n\n{tag}{field_table(struct)}\n"
