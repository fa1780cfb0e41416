"""Pages for files and directories of the repository that are not pages themselves, such as examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["directory_as_markdown", "file_as_markdown", "unreleased_changes"]

_LANGUAGES: Final = {
    ".json": "json",
    ".plist": "xml",
    ".py": "python",
    ".service": "ini",
    ".toml": "toml",
    ".ts": "ts",
    ".yaml": "yaml",
    ".yml": "yaml",
}
_KINDS: Final = ("removed", "added", "changed", "fixed")


def file_as_markdown(file: Path) -> str:
    """Return a page with the text of a file."""
    text = file.read_text()
    language = "dockerfile" if file.name == "Dockerfile" else _LANGUAGES.get(file.suffix, "text")
    fence = max((run for run in re.findall(r"`{3,}", text)), key=len, default="``") + "`"
    return f"# {file.name}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def directory_as_markdown(directory: Path) -> str:
    """Return a page that lists the files and directories in a directory."""
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith((".", "_")))
    return f"# {directory.name}\n\n" + "".join(f"- [{name}]({directory.name}/{name})\n" for name in names)


def unreleased_changes(directory: Path) -> str:
    """Return the sections with the changes that no release contains yet, one for each kind."""
    sections = []
    for kind in _KINDS:
        texts = [path.read_text().strip().replace("](../", "](") for path in sorted(directory.glob(f"*.{kind}.md"))]
        if texts:
            items = "\n".join("- " + text.replace("\n", "\n  ") for text in texts)
            sections.append(f"## {kind.capitalize()}\n\n{items}\n")
    return "\n".join(sections)
