"""Parley installed in the `.venv` of a project, as by `pip install`, without the network."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path
from typing import Final, NamedTuple

import parley

__all__ = ["ATTACK", "Installed", "install"]

SCRIPT: Final = """#!{python}
import sys
from parley.cli.main import main
sys.exit(main())
"""

ATTACK: Final = r"""
import json, os, shutil, sys
project, mark = sys.argv[1:]
venv = f"{project}/.venv"
(site,) = [f"{venv}/lib/{name}/site-packages" for name in os.listdir(f"{venv}/lib")]
evil = f"open({mark!r}, 'a').write('planted\\n')\n"
worked = []


def attempt(name):
    def run(work):
        try:
            work()
            worked.append(name)
        except OSError as error:
            print(name, error, file=sys.stderr)
    return run


def written(path, text=evil, mode="w"):
    with open(path, mode) as file:
        file.write(text)


def replaced(path, text=evil):
    written(f"{project}/other", text)
    os.chmod(f"{project}/other", 0o755)
    os.replace(f"{project}/other", path)


attempt("append to a module")(lambda: written(f"{site}/parley/agent/turn.py", mode="a"))
attempt("replace a module")(lambda: replaced(f"{site}/parley/version.py", "__version__ = '0'\n" + evil))
attempt("put a compiled module in place")(lambda: os.makedirs(f"{site}/parley/models/__pycache__/x"))
attempt("add a module that is only looked for")(lambda: written(f"{site}/aiodns.py"))
attempt("add a path file")(lambda: written(f"{site}/evil.pth", "import os; " + evil))
attempt("customize the site")(lambda: written(f"{site}/sitecustomize.py", mode="a"))
attempt("change the settings of the environment")(lambda: written(f"{venv}/pyvenv.cfg", "home = /nowhere\n", "a"))
attempt("replace the program")(lambda: replaced(f"{venv}/bin/parley", f"#!{sys.executable}\n" + evil))
attempt("replace the interpreter")(lambda: replaced(f"{venv}/bin/python", f"#!{sys.executable}\n" + evil))
attempt("remove the interpreter")(lambda: os.unlink(f"{venv}/bin/python3"))
attempt("write through another name")(
    lambda: (os.link(f"{site}/parley/errors.py", f"{project}/name"), written(f"{project}/name", mode="a"))
)
attempt("let others write")(lambda: os.chmod(site, 0o777))
attempt("move the package")(lambda: os.rename(f"{site}/parley", f"{project}/parley-away"))
attempt("move the environment")(lambda: (os.rename(venv, f"{venv}-away"), os.mkdir(venv)))
attempt("remove the environment")(lambda: shutil.rmtree(f"{venv}/include"))
attempt("put modules into the project")(
    lambda: [written(f"{project}/{name}.py") for name in ("msgspec", "aiohttp", "sitecustomize", "mcp", "parley")]
)
print(json.dumps(worked))
"""
"""A program that tries to make the server run its code. Its arguments are the project and a file that the code
writes."""


class Installed(NamedTuple):
    project: Path

    @property
    def venv(self) -> Path:
        return self.project / ".venv"

    @property
    def site(self) -> Path:
        (site,) = self.venv.glob("lib/*/site-packages")
        return site

    @property
    def program(self) -> tuple[str, ...]:
        return (str(self.venv / "bin/parley"),)


def install(project: Path) -> Installed:
    """Create a virtual environment in a project, with a copy of the package; the dependencies come from the
    environment that runs the tests."""
    project.mkdir(parents=True, exist_ok=True)
    venv.create(project / ".venv", symlinks=True)
    installed = Installed(project)
    shutil.copytree(Path(parley.__file__).parent, installed.site / "parley")
    (installed.site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (installed.site / "sitecustomize.py").write_text("")
    (installed.venv / "include").mkdir(exist_ok=True)
    program = installed.venv / "bin/parley"
    program.write_text(SCRIPT.format(python=installed.venv / "bin/python"))
    program.chmod(0o755)
    return installed
