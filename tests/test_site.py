"""The documentation site contains every page, its links work, and it needs nothing from other servers."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final

import msgspec
import pytest
from docs.site.build import ROOT, Site, address_of, build, read_sources
from docs.site.navigation import NAVIGATION
from docs.site.output import NotASite, write
from docs.site.reference.settings import rows

from kit.system.commands import TIMEOUT_SECONDS
from parley.cli.main import COMMANDS
from parley.client import __all__ as client_names
from parley.config.effective import effective_settings
from parley.config.load import Loader
from parley.server.tools import TOOLS
from parley.testing import __all__ as testing_names
from parley.wire.events import EVENT_TYPES, NEVER_SENT

MODULES: Final = {"events", "items"}


@pytest.fixture(scope="module")
def site() -> Site:
    return build()


def html(site: Site) -> dict[str, str]:
    return {path: content.decode() for path, content in site.files.items() if path.endswith(".html")}


def headings(site: Site, address: str) -> set[str]:
    text = site.files[address].decode()
    return {
        unescape(re.sub("<[^>]+>", "", found)) for found in re.findall(r"<h[2-4] id=[^>]*>(.*?) <a", text, re.S)
    }


def test_the_site_has_every_page_and_no_problem(site: Site) -> None:
    pages = {address_of(path.relative_to(ROOT).as_posix()) for path in ROOT.glob("docs/**/*.md")}

    assert site.problems == []
    assert pages - set(site.files) == set()


def test_every_link_in_the_html_leads_to_a_file_and_an_anchor_of_the_site(site: Site) -> None:
    pages = html(site)
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}

    broken = [
        f"{path}: {target}"
        for path, text in pages.items()
        for target in addresses(text)
        if not leads_somewhere(path, target, site, anchors)
    ]

    assert len(pages) > 100
    assert broken == []


def addresses(text: str) -> Iterator[str]:
    return (unescape(found) for found in re.findall(r'\b(?:href|src)="([^"]*)"', text))


def leads_somewhere(path: str, target: str, site: Site, anchors: dict[str, set[str]]) -> bool:
    if re.match(r"https?:", target):
        return True
    file, _, anchor = target.partition("#")
    named = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
    return named in site.files and (not anchor or anchor in anchors[named])


def test_a_page_loads_nothing_from_another_server(site: Site) -> None:
    loaded = [
        found
        for text in html(site).values()
        for found in re.findall(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="([^"]*)"', text)
    ]
    styles = [content.decode() for path, content in site.files.items() if path.endswith((".css", ".js"))]

    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    assert [found for text in styles for found in re.findall(r"url\(|@import|https?://(?!)", text)] == []


def test_the_search_finds_the_sections_of_every_page(site: Site) -> None:
    script = site.files["assets/search-index.js"].decode()
    entries = msgspec.json.decode(script.removeprefix("window.searchIndex = ").rstrip(";\n"))
    by_address = {entry["address"]: entry for entry in entries}

    assert {address.partition("#")[0] for address in by_address} == {address_of(path) for path in read_sources()}
    assert "untrusted" in by_address["config.html#approval_policy"]["text"]


# --- the generated pages ---------------------------------------------------------------


def test_the_reference_has_every_tool_and_event_and_command(site: Site) -> None:
    assert {tool.name for tool in TOOLS} - headings(site, "reference/tools.html") == set()
    assert set(EVENT_TYPES) - NEVER_SENT - headings(site, "reference/events.html") == set()
    assert {f"parley {one.name}" for one in COMMANDS} - headings(site, "reference/commands.html") == set()


def test_every_field_of_an_event_has_a_type_and_a_description(site: Site) -> None:
    text = site.files["reference/events.html"].decode().partition('id="types"')[0]
    sections = re.findall(r'<h2 id="(\w+)">(.*?)(?=<h2|\Z)', text, re.DOTALL)
    cells = r"<tr>\s*<td><code>(.*?)</code></td>\s*<td>(.*?)</td>\s*<td>.*?</td>\s*<td>(.*?)</td>"
    rows = [(kind, row) for kind, section in sections for row in re.findall(cells, section, re.DOTALL)]
    prose = {kind: section.partition("<table>")[0] for kind, section in sections}

    assert len(rows) > 80
    assert [
        f"{kind}.{name}"
        for kind, (name, type_, text) in rows
        if not type_ or not (text or f"<code>{name}</code>" in prose[kind])
    ] == []


def test_the_reference_has_the_public_python_names(site: Site) -> None:
    assert {*client_names} - MODULES - headings(site, "reference/client.html") == set()
    assert {*testing_names} - headings(site, "reference/testing.html") == set()


def test_the_reference_has_every_setting(site: Site, tmp_path: Path) -> None:
    loader = Loader(environ={"PARLEY_HOME": str(tmp_path)}, server_dir="/")
    with_value = {one.key for one in effective_settings(loader) if not one.key.startswith("model_providers.")}
    listed = {row.key: row for row in rows()}

    assert with_value - set(listed) == set()
    assert listed["approvals.timeout_seconds"] == (
        "approvals.timeout_seconds",
        "integer from 0 to 2147483647",
        "`300`",
        False,
    )
    assert listed["model"].is_in_profiles
    assert "model_providers.NAME.wire_api" in listed


def test_the_reference_has_every_error_code(site: Site) -> None:
    table = (ROOT / "docs/protocol.md").read_text().split("### Error codes\n")[1].split("\n### ")[0]
    text = site.files["reference/errors.html"].decode()

    listed = set(re.findall(r"<tr>\s*<td><code>(\w+)</code>", text))
    assert listed == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


# --- mistakes --------------------------------------------------------------------------


def problems_of(**pages: str) -> list[str]:
    listed = {entry.source: "# A page\n" for section in NAVIGATION for entry in section.entries}
    return build(listed | {f"docs/{name}.md": text for name, text in pages.items()}).problems


def test_a_broken_link_is_a_problem() -> None:
    assert problems_of(config="# Settings\n\n[a](nothing.md) [b](events.md#nothing) [c](events.md#a-page)\n") == [
        "docs/config.md: nothing.md: there is no such file",
        "docs/config.md: events.md#nothing: docs/events.md has no heading with this anchor",
    ]


def test_a_page_to_which_no_link_leads_is_a_problem() -> None:
    assert problems_of(lost="# Lost\n") == ["docs/lost.md: neither the navigation nor a page links to it"]
    assert problems_of(lost="# Lost\n", config="# Settings\n\n[a](lost.md)\n") == []


def test_a_link_out_of_the_repository_is_a_problem() -> None:
    assert problems_of(config="# Settings\n\n[a](../../other/README.md)\n") == [
        "docs/config.md: ../../other/README.md: there is no such file"
    ]


def test_the_text_of_a_page_cannot_contain_html() -> None:
    pages = {entry.source: "# A page\n" for section in NAVIGATION for entry in section.entries}
    built = build(pages | {"docs/config.md": "# <b>\n\n<script>x</script>\n\n```python title\nx = '<i>'\n```\n"})

    text = built.files["config.html"].decode().partition("<main")[2]
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<i>" not in text


def test_the_directory_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(NotASite):
        write({"index.html": b""}, tmp_path)

    write({"index.html": b"", "old.html": b""}, tmp_path / "site")
    write({"index.html": b"new"}, tmp_path / "site")

    assert (tmp_path / "mine").exists()
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == [".parley-docs", "index.html"]
    assert (tmp_path / "site/index.html").read_bytes() == b"new"


@pytest.mark.parametrize("has_other_files", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_command_writes_the_site_or_says_why_not(tmp_path: Path, has_other_files: bool) -> None:
    directory = tmp_path / "site"
    if has_other_files:
        directory.mkdir()
        (directory / "mine").write_text("")
    run = subprocess.run(
        [sys.executable, "-m", "docs.site", directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    if has_other_files:
        assert run.returncode == 1
        assert run.stderr == f"{directory} contains other files; name an empty or a new directory\n"
    else:
        assert (run.returncode, run.stderr) == (0, "")
        assert re.fullmatch(rf"\d+ pages: {directory}/index.html\n", run.stdout)
        assert (directory / "index.html").exists()
