"""The scene of the recording: the task of the tutorial in `parley chat`, from the message to the change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from docs.recording.terminal import Frame, Terminal

__all__ = ["play"]

EXAMPLE: Final = Path(__file__).parents[1] / "examples/tutorial"
HOME_SHOWN: Final = "/home/ada"
"""The home directory that the recording shows."""
PARLEY: Final = str(Path(sys.executable).with_name("parley"))
CONFIG: Final = """\
model_provider = "tutorial"

[model_providers.tutorial]
wire_api = "scripted"
script = "script.json"
"""


def play() -> list[Frame]:
    """Play the scene and return its frames."""
    with tempfile.TemporaryDirectory(prefix="parley-recording-") as name:
        home = Path(name)
        env = _prepare(home)
        try:
            frames = _record(home / "shop", env)
        finally:
            subprocess.run([PARLEY, "serve", "--stop"], env=env, check=False, capture_output=True)
        return [frame._replace(screen=frame.screen.replace(name, HOME_SHOWN)) for frame in frames]


def _prepare(home: Path) -> dict[str, str]:
    """Create the repository and the settings, and return the environment of the chat."""
    (home / ".parley").mkdir()
    (home / ".parley/config.toml").write_text(CONFIG)
    shop = home / "shop"
    shop.mkdir()
    for file in ("prices.py", "check.py"):
        shutil.copy(EXAMPLE / file, shop)
    shutil.copy(EXAMPLE / "script.json", home / ".parley")
    path = f"{Path(PARLEY).parent}:{os.environ['PATH']}"
    return {"HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"}


def _record(shop: Path, env: dict[str, str]) -> list[Frame]:
    with Terminal([PARLEY, "chat"], env=env, cwd=shop) as terminal:
        terminal.wait_for("read-only")
        terminal.pause(0.8)
        terminal.type("The discounts are wrong. Please fix them.")
        terminal.pause(0.5)
        terminal.press("Enter")
        terminal.wait_for("a allow once")
        terminal.pause(2.5)
        terminal.press("a")
        terminal.wait_for("both checks pass")
        terminal.wait_for("1,200 in")
        terminal.pause(0.5)
        return terminal.frames
