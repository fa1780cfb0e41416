"""The recording of `parley chat` in the README shows what the chat shows, and needs no script and no other file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from docs.recording.scene import play
from docs.recording.svg import as_svg
from docs.recording.terminal import Frame

IMAGE: Final = Path(__file__).parents[1] / "docs/images/chat.svg"
SVG: Final = "{http://www.w3.org/2000/svg}"
VARIABLE: Final = re.compile(r"\d+\.\d+ s|working \d+ s")


def last_screen(svg: str) -> list[str]:
    """Return the lines that a program without animations shows."""
    root = ElementTree.fromstring(svg)
    (screen,) = root.findall(f"{SVG}g")
    lines: dict[int, dict[float, str]] = {}
    for part in screen:
        if part.get("visibility") != "hidden":
            for text in [part, *part.iter()] if part.tag != f"{SVG}text" else [part]:
                if text.tag == f"{SVG}text":
                    lines.setdefault(int(text.get("y", "")), {})[float(text.get("x", ""))] = text.text or ""
    return [VARIABLE.sub("N s", " ".join(words[x] for x in sorted(words))) for _, words in sorted(lines.items())]


def test_the_recording_shows_an_approved_change() -> None:
    svg = IMAGE.read_text()
    shown = "\n".join(last_screen(svg))

    assert "discounted  now computes a percentage, and both checks pass." in shown
    assert "approved" in shown
    assert "Apply these changes outside the sandbox?" in svg
    assert "Apply these changes" not in shown
    assert re.findall(r"<script|href|url\(|@import|on\w+=", svg) == []


def test_each_text_is_visible_in_its_time() -> None:
    frames = [
        Frame(0.2, "a <b>\n\x1b[31mred\x1b[0m", (1, 0)),
        Frame(1.0, "a <b>\nsecond", (2, 1)),
        Frame(3.0, "third\nsecond", None),
    ]

    svg = as_svg(frames, title="<t>")

    shown = re.findall(
        r"<g( visibility=\"hidden\")?>(?:<text[^>]*>([^<]*)</text>)<animate[^>]* (values=.*?)/>", svg
    )
    assert [(not hidden, text, times) for hidden, text, times in shown] == [
        (False, "a &lt;b&gt;", 'values="visible;hidden" keyTimes="0;0.375"'),
        (True, "third", 'values="hidden;visible" keyTimes="0;0.375"'),
        (False, "red", 'values="visible;hidden" keyTimes="0;0.125"'),
        (True, "second", 'values="hidden;visible" keyTimes="0;0.125"'),
    ]
    assert last_screen(svg) == ["third", "second"]
    assert 'fill="#f07178"' in svg
    assert "&lt;t&gt;" in svg


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_recording_is_current() -> None:
    assert last_screen(as_svg(play(), title="parley chat")) == last_screen(IMAGE.read_text())
