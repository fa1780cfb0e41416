"""Serves the static files of the web page from memory.

The files are read once. A request selects a file by its exact path from a table, so no request can reach any other
file on the disk. The URLs of most files contain a hash of all files, so browsers may cache these files forever.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache, cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Final

from parley.ports.http import HttpRequest
from parley.wire.http import HttpAnswer

__all__ = ["FOLDER", "PageAssets", "page_assets", "read_files"]

FOLDER: Final = Path(__file__).parent / "static"

ENTRY: Final = "index.html"
AT_ROOT: Final = frozenset({ENTRY, "sw.js", "manifest.webmanifest"})
"""The files whose URLs do not contain the hash of all files. A service worker can control only URLs below its own
directory. The URLs of the page and of its manifest must not change with each version.
"""
WITH_ADDRESSES: Final = frozenset({ENTRY, "manifest.webmanifest"})
"""The files in which each URL that begins with `static/` is replaced with a URL that contains the hash of all
files.
"""
PREFIX: Final = "/static/"
HASH_LENGTH: Final = 16

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
"""The content types, keyed by the suffix of the file. A file with any other suffix is not served."""
UNSERVED: Final = frozenset({"package.json", "package-lock.json", "tsconfig.json", "jsconfig.json"})
"""The names of files that are not served, because only the development of the page needs them."""
COMPRESSED: Final = frozenset({".css", ".html", ".ico", ".js", ".json", ".mjs", ".svg", ".txt", ".webmanifest"})

VENDORED: Final = "vendor/"
COMMENT: Final = re.compile(rb"^[ \t]*(?:/\*.*?\*/[ \t]*|//[^\n]*)$", re.MULTILINE | re.DOTALL)
"""Matches a comment that occupies whole lines. In the modules and style sheets of the page, this pattern matches
only comments.
"""
ANNOTATION: Final = re.compile(rb"/\*\* @[^\n]*?\*/ ?")
"""Matches a comment inside a line that annotates a type. In the modules of the page, no string contains such text.
"""
INDENTATION: Final = re.compile(rb"^[ \t]+", re.MULTILINE)
"""Matches the indentation of a line. The indentation is removed from the files before they are served. In the
modules and style sheets of the page, no string extends over several lines, so removing the indentation changes no
string.
"""

FOREVER: Final = "public, max-age=31536000, immutable"
ASK_FIRST: Final = "no-cache"


class _Asset:
    """One file of the page, with its response headers."""

    def __init__(self, name: str, body: bytes) -> None:
        suffix = f".{name.rpartition('.')[2]}"
        self._is_compressible = suffix in COMPRESSED
        self.body = body
        self.tag = f'W/"{hashlib.sha256(body).hexdigest()[:HASH_LENGTH]}"'
        """The entity tag, which changes with the content."""
        self.headers = {"Content-Type": TYPES[suffix]}
        """The headers of each response that contains this file, except those for caching and compression."""
        if name == "sw.js":
            self.headers["Service-Worker-Allowed"] = "./"

    @cached_property
    def compressed(self) -> bytes | None:
        """The content, compressed with gzip; None if the compressed content would not be shorter."""
        compressed = gzip.compress(self.body, mtime=0) if self._is_compressible else self.body
        return compressed if len(compressed) < len(self.body) else None


class PageAssets:
    """The files of the page, which are selected by the path of a request."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Create the table of files. `files` maps the path of each file, relative to the directory `static`, to its
        content.
        """
        self._assets: dict[str, _Asset] = {}
        self.build = ""
        """The hash of all files; empty if `files` contains no page."""
        if ENTRY not in files:
            return
        digest = hashlib.sha256()
        for name, content in sorted(files.items()):
            digest.update(b"%d %b %d %b" % (len(name), name.encode(), len(content), content))
        self.build = digest.hexdigest()[:HASH_LENGTH]
        for name, content in files.items():
            if name.endswith((".js", ".css")) and not name.startswith(VENDORED):
                content = _shortened(content)
            if name in WITH_ADDRESSES:
                content = content.replace(b'"static/', b'"static/%b/' % self.build.encode())
            self._assets[f"/{name}" if name in AT_ROOT else PREFIX + name] = _Asset(name, content)
        self._assets["/"] = self._assets[f"/{ENTRY}"]

    def answer(self, path: str, request: HttpRequest) -> HttpAnswer | None:
        """Return the response to `request`, a request for a file; None if `path` does not belong to the page.

        `path` is the path relative to the URL of the page.
        """
        asset, caching = self._assets.get(path), ASK_FIRST
        if asset is None and path.startswith(PREFIX) and self._assets:
            version, _, name = path.removeprefix(PREFIX).partition("/")
            asset = self._assets.get(PREFIX + name) if len(version) == HASH_LENGTH else None
            # A browser may still show the page of an earlier version.
            caching = FOREVER if version == self.build else ASK_FIRST
            if asset is None:
                return HttpAnswer(status=HTTPStatus.NOT_FOUND)
        if asset is None:
            return None
        if request.method not in ("GET", "HEAD"):
            return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        headers = {**asset.headers, "Cache-Control": caching, "ETag": asset.tag, "Vary": "Accept-Encoding"}
        if _has_tag(request, asset.tag):
            return HttpAnswer(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        if _accepts_gzip(request) and asset.compressed is not None:
            return HttpAnswer(
                status=HTTPStatus.OK, body=asset.compressed, headers={**headers, "Content-Encoding": "gzip"}
            )
        return HttpAnswer(status=HTTPStatus.OK, body=asset.body, headers=headers)


@cache
def page_assets() -> PageAssets:
    """Return the files of the page. The first call reads them.

    Raises:
        OSError: a file cannot be read.
    """
    return PageAssets(read_files())


def read_files(folder: Path = FOLDER) -> dict[str, bytes]:
    """Read the files below `folder` that are served, and return their contents, keyed by path. If `folder` does not
    exist, return an empty dictionary.

    Raises:
        OSError: a file cannot be read.
    """
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES
        and path.name not in UNSERVED
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    }


def _shortened(content: bytes) -> bytes:
    """Return the content of a file without comments and indentation. The lines keep their numbers."""
    without_comments = COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)
    return INDENTATION.sub(b"", ANNOTATION.sub(b"", without_comments))


def _has_tag(request: HttpRequest, tag: str) -> bool:
    """Return whether the `If-None-Match` header of a request matches the entity tag `tag`. If so, the browser
    already has the current content of the file.
    """
    known = [one.strip() for value in request.header("If-None-Match") for one in value.split(",")]
    return "*" in known or any(one.removeprefix("W/") == tag.removeprefix("W/") for one in known)


def _accepts_gzip(request: HttpRequest) -> bool:
    for value in request.header("Accept-Encoding"):
        for part in value.split(","):
            coding, _, parameters = part.partition(";")
            if coding.strip().lower() == "gzip":
                return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
