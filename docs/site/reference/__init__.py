"""The reference pages, generated from the code: commands, settings, tools, events, errors and the Python API."""

from __future__ import annotations

from docs.site.reference.commands import commands_page
from docs.site.reference.errors import errors_page
from docs.site.reference.events import events_page
from docs.site.reference.python_api import client_page, testing_page
from docs.site.reference.settings import settings_page
from docs.site.reference.tools import tools_page

__all__ = ["generated_pages"]


def generated_pages() -> dict[str, str]:
    """Return the Markdown text of each generated page, by its path."""
    return {
        "docs/reference/client.md": client_page(),
        "docs/reference/commands.md": commands_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/events.md": events_page(),
        "docs/reference/settings.md": settings_page(),
        "docs/reference/testing.md": testing_page(),
        "docs/reference/tools.md": tools_page(),
    }
