"""The directories of `PATH` in which the server looks for the programs that it runs itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.config.load import Loader
from parley.config.search_path import environ_of_programs
from parley.config.types import SettingsOverrides


def path_of_programs(tmp_path: Path, folders: list[str], sandbox: str) -> list[str]:
    """Return the directories of `PATH` that remain for programs of the server."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir(exist_ok=True)
    (project / "bin").mkdir(parents=True, exist_ok=True)
    environ = {"PARLEY_HOME": str(home), "HOME": str(home), "PATH": os.pathsep.join(folders)}
    settings = Loader(environ=environ, server_dir=str(home)).choose(
        SettingsOverrides(cwd=str(project), sandbox=sandbox)
    )
    return environ_of_programs(settings.settings).get("PATH", "").split(os.pathsep)


def test_directories_that_commands_may_write_to_are_removed(tmp_path: Path) -> None:
    inside = str(tmp_path / "project" / "bin")
    link = tmp_path / "link"
    link.symlink_to(inside)
    folders = ["/usr/bin", inside, str(link), "bin", "", "/usr/sbin"]

    assert path_of_programs(tmp_path, folders, "workspace-write") == ["/usr/bin", "/usr/sbin"]


def test_a_path_without_other_directories_becomes_the_default_path(tmp_path: Path) -> None:
    assert path_of_programs(tmp_path, [str(tmp_path / "project" / "bin")], "workspace-write") == os.defpath.split(
        os.pathsep
    )


@pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access"])
def test_the_path_stays_as_it_is_if_commands_are_not_limited_to_directories(tmp_path: Path, sandbox: str) -> None:
    folders = ["/usr/bin", str(tmp_path / "project" / "bin")]

    assert path_of_programs(tmp_path, folders, sandbox) == folders
