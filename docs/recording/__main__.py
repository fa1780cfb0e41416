"""`python -m docs.recording [FILE]`: records `parley chat` and writes the recording as SVG."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docs.recording.scene import play
from docs.recording.svg import as_svg

IMAGE = Path(__file__).parents[1] / "images/chat.svg"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.recording", description="Record parley chat as SVG.")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, default=IMAGE, help=f"by default {IMAGE}")
    file: Path = parser.parse_args().file
    file.write_text(as_svg(play(), title="parley chat"))
    print(f"{file}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
