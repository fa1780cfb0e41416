"""The files of the page: vendored libraries, rules of the code, the list of modules, and types."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

from kit.clients.npm import TYPESCRIPT, fetched, output_of

STATIC = Path(str(files("parley"))) / "web" / "static"
VENDOR = STATIC / "vendor"
OWN = [path for path in sorted(STATIC.rglob("*.js")) if VENDOR not in path.parents]


def test_the_vendored_libraries_are_unchanged() -> None:
    lines = (line.split("  ./") for line in (VENDOR / "checksums.txt").read_text().splitlines())
    expected = {name: digest for digest, name in lines}

    found = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*.js")
    }

    assert found == expected


def test_the_vendored_libraries_have_their_licences() -> None:
    assert "MIT" in (VENDOR / "marked.LICENSE.txt").read_text()
    assert "Redistribution and use" in (VENDOR / "highlight" / "LICENSE.txt").read_text()


def test_no_module_writes_html_or_evaluates_text() -> None:
    forbidden = re.compile(
        r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|parseFromString"
        r"|eval\(|new Function|srcdoc)"
    )

    assert [path.name for path in OWN if forbidden.search(path.read_text())] == []


def test_no_text_of_a_module_extends_over_several_lines() -> None:
    """The server removes the indentation of the modules."""
    text, regular, comment = r'"(?:[^"\\\n]|\\.)*"', r"/(?![/*])(?:[^/\\\n]|\\.)+/[a-z]*", r"^ *(?:/?\*|//).*$"
    others = re.compile(f"{text}|{regular}|{comment}", re.MULTILINE)
    code = {path.name: others.sub("", path.read_text()).splitlines() for path in OWN}

    assert [(name, line) for name, lines in code.items() for line in lines if line.count("`") % 2] == []


def test_no_file_names_another_host() -> None:
    sources = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html", ".webmanifest"}]

    found = {
        (path.name, address)
        for path in sources
        if VENDOR not in path.parents
        for address in re.findall(r"https?://[\w.]+", path.read_text())
    }

    assert found <= {("dom.js", "http://www.w3.org")}  # the namespace of SVG


def test_all_addresses_are_relative() -> None:
    index = (STATIC / "index.html").read_text()

    assert re.findall(r'(?:href|src)="/', index) == []
    assert [path.name for path in OWN if re.search(r'(?:fetch|register)\("/', path.read_text())] == []


def imported_at_once(path: Path, found: dict[Path, None]) -> dict[Path, None]:
    """Add a module and the modules that it imports when it is loaded."""
    if path not in found:
        found[path] = None
        for address in re.findall(r'^import [^"\n]*"(\.[^"]+)"$', path.read_text(), re.MULTILINE):
            imported_at_once((path.parent / address).resolve(), found)
    return found


def test_the_page_loads_its_modules_at_once() -> None:
    needed = [str(path.relative_to(STATIC)) for path in imported_at_once(STATIC / "app.js", {})]

    listed = re.findall(r'rel="modulepreload" href="static/([^"]+)"', (STATIC / "index.html").read_text())

    assert sorted(listed) == sorted(set(needed) - {"app.js"})


async def test_the_types_are_correct() -> None:
    modules = await fetched("the types of the page", *TYPESCRIPT)

    code, out, _ = await output_of(
        "node",
        str(modules / "typescript/bin/tsc"),
        "-p",
        str(STATIC),
        env={"PATH": "/usr/bin:/bin"},
        cwd=STATIC,
        seconds=90,
    )

    assert (code, out.decode()) == (0, "")
