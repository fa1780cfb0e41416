"""`python -m docs.site [DIRECTORY]`: builds the site in a directory, by default `build/site`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docs.site.build import ROOT, build
from docs.site.output import NotASite, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Build the documentation site.")
    parser.add_argument(
        "directory",
        metavar="DIRECTORY",
        nargs="?",
        type=Path,
        default=ROOT / "build/site",
        help="the directory of the site, by default build/site; its files are replaced",
    )
    directory: Path = parser.parse_args().directory
    site = build()
    for problem in site.problems:
        print(problem, file=sys.stderr)
    if site.problems:
        print(f"{len(site.problems)} problems; no file was written", file=sys.stderr)
        return 1
    try:
        write(site.files, directory)
    except (NotASite, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sum(path.endswith('.html') for path in site.files)} pages: {directory / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
