"""The navigation of the site: its sections, and the pages of each section in reading order."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NAVIGATION", "Entry", "Section"]


class Entry(NamedTuple):
    """A page in the navigation."""

    title: str
    source: str
    """The path of the Markdown file in the repository. Pages in `docs/reference/` are generated."""


class Section(NamedTuple):
    """A group of pages in the navigation."""

    title: str
    entries: tuple[Entry, ...]


NAVIGATION: Final = (
    Section(
        "Start",
        (
            Entry("Parley", "README.md"),
            Entry("Tutorial", "docs/tutorial.md"),
            Entry("Set-up", "docs/setup.md"),
            Entry("The scripted provider", "docs/scripted.md"),
            Entry("Models", "docs/models.md"),
        ),
    ),
    Section(
        "Use",
        (
            Entry("Chat", "docs/chat.md"),
            Entry("Scripts and CI", "docs/exec.md"),
            Entry("Commands", "docs/commands.md"),
            Entry("The web page", "docs/page.md"),
            Entry("The resident server", "docs/resident.md"),
            Entry("Settings", "docs/config.md"),
            Entry("Conversation files", "docs/files.md"),
            Entry("Security", "docs/security.md"),
        ),
    ),
    Section(
        "How to",
        (
            Entry("How-tos", "docs/howto/README.md"),
            Entry("Claude Desktop and Code", "docs/howto/claude.md"),
            Entry("VS Code", "docs/howto/vs-code.md"),
            Entry("GitHub Actions", "docs/howto/github-actions.md"),
            Entry("A proxy with TLS", "docs/howto/proxy.md"),
            Entry("Test a program", "docs/howto/testing.md"),
            Entry("A client in TypeScript", "docs/howto/typescript.md"),
        ),
    ),
    Section(
        "Hosts",
        (
            Entry("Host applications", "docs/hosts/README.md"),
            Entry("Claude Code", "docs/hosts/claude-code.md"),
            Entry("Codex", "docs/hosts/codex.md"),
            Entry("Gemini CLI", "docs/hosts/gemini-cli.md"),
            Entry("opencode", "docs/hosts/opencode.md"),
            Entry("Checks", "docs/hosts/checks.md"),
            Entry("From Codex", "docs/from-codex.md"),
        ),
    ),
    Section(
        "Operate",
        (
            Entry("Tokens and roles", "docs/tokens.md"),
            Entry("PostgreSQL", "docs/postgres.md"),
            Entry("Workspaces", "docs/workspaces.md"),
            Entry("Deployment", "docs/deployment.md"),
            Entry("Sizing", "docs/sizing.md"),
            Entry("Observability", "docs/observability.md"),
        ),
    ),
    Section(
        "Develop",
        (
            Entry("Python client", "docs/client.md"),
            Entry("Testing", "docs/testing.md"),
            Entry("Protocol", "docs/protocol.md"),
            Entry("Events", "docs/events.md"),
        ),
    ),
    Section(
        "Reference",
        (
            Entry("Commands and options", "docs/reference/commands.md"),
            Entry("Table of settings", "docs/reference/settings.md"),
            Entry("Tools", "docs/reference/tools.md"),
            Entry("Types of events", "docs/reference/events.md"),
            Entry("Error codes", "docs/reference/errors.md"),
            Entry("parley.client", "docs/reference/client.md"),
            Entry("parley.testing", "docs/reference/testing.md"),
        ),
    ),
    Section(
        "Internals",
        (
            Entry("Architecture", "docs/architecture.md"),
            Entry("Decisions", "docs/decisions/README.md"),
            Entry("Benchmarks", "docs/benchmarks.md"),
            Entry("Changes", "CHANGELOG.md"),
        ),
    ),
)
"""A page in a folder whose `README.md` is an entry may be left out, because that page links to it."""
