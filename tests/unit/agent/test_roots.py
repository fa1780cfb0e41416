from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.models.raw_provider import settings
from parley.agent.sandbox_policy import Roots, policy_for, read_only
from parley.config.types import Environment, Sandbox, Settings, WorkspaceWrite
from parley.ports.commands import SandboxPolicy, WritableRoot


def root(path: Path) -> WritableRoot:
    found = path.lstat()
    return WritableRoot(path=str(path), device=found.st_dev, inode=found.st_ino)


def writing(cwd: Path, *more: Path, tmp: bool = False) -> Settings:
    chosen = WorkspaceWrite(
        writable_roots=tuple(map(str, more)), exclude_slash_tmp=not tmp, exclude_tmpdir_env_var=not tmp
    )
    return settings(sandbox_mode="workspace-write", cwd=str(cwd), workspace_write=chosen)


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    for name in ("project", "wide/inner", "outside"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_the_working_directory_and_what_is_named_may_be_written_to(ground: Path) -> None:
    chosen = writing(ground / "project", ground / "wide", ground / "missing")

    assert Roots().of(chosen) == (root(ground / "project"), root(ground / "wide"))


def test_temporary_files_may_be_written_unless_the_settings_say_otherwise(ground: Path) -> None:
    def chosen(tmpdir: object, *, tmp: bool) -> Settings:
        return replace(writing(ground / "project", tmp=tmp), environ=Environment(TMPDIR=str(tmpdir)))

    assert Roots().of(chosen(ground / "wide", tmp=True)) == (
        root(ground / "project"),
        root(Path("/tmp")),
        root(ground / "wide"),
    )
    assert Roots().of(chosen(ground / "wide", tmp=False)) == (root(ground / "project"),)
    assert Roots().of(chosen("wide", tmp=True))[1:] == (root(Path("/tmp")),)


def test_a_directory_that_is_named_twice_is_one_root(ground: Path) -> None:
    (ground / "also").symlink_to("project")

    assert Roots().of(writing(ground / "project", ground / "also", ground / "project")) == (
        root(ground / "project"),
    )


def test_a_name_is_not_followed_where_a_command_could_have_made_a_link_of_it(ground: Path) -> None:
    (ground / "wide" / "build").symlink_to(ground / "outside")
    chosen = writing(
        ground / "project", ground / "wide", ground / "wide" / "build", ground / "wide" / "build" / "."
    )

    assert Roots().of(chosen) == (root(ground / "project"), root(ground / "wide"))


def test_nor_is_a_link_to_a_link_that_a_command_could_have_made(ground: Path) -> None:
    (ground / "wide" / "build").symlink_to(ground / "outside")
    (ground / "by-hand").symlink_to("wide/inner/../build")

    assert Roots().of(writing(ground / "by-hand", ground / "wide")) == (root(ground / "wide"),)


def test_a_link_that_no_command_can_change_is_followed(ground: Path) -> None:
    (ground / "current").symlink_to("project")

    assert Roots().of(writing(ground / "current", ground / "wide")) == (
        root(ground / "project"),
        root(ground / "wide"),
    )


def test_a_name_is_not_followed_where_a_command_of_another_conversation_could_have_made_a_link_of_it(
    ground: Path,
) -> None:
    granted = set[str]()
    Roots(granted).of(writing(ground / "wide"))
    (ground / "wide" / "build").symlink_to(ground / "outside")

    assert Roots(granted).of(writing(ground / "project", ground / "wide" / "build")) == (root(ground / "project"),)


def test_a_root_that_was_missing_is_not_followed_through_a_link_later(ground: Path) -> None:
    roots, chosen = Roots(), writing(ground / "project", ground / "wide" / "build")
    roots.of(chosen)
    (ground / "wide" / "build").symlink_to(ground / "outside")

    assert roots.of(chosen) == (root(ground / "project"),)


def test_a_directory_that_is_made_later_is_written_to_from_then_on(ground: Path) -> None:
    roots, chosen = Roots(), writing(ground / "project", ground / "wide" / "build")
    before = roots.of(chosen)
    (ground / "wide" / "build").mkdir()

    assert (before, roots.of(chosen)) == (
        (root(ground / "project"),),
        (root(ground / "project"), root(ground / "wide" / "build")),
    )


@pytest.mark.parametrize("known_of", [True, False])
def test_a_directory_that_replaces_a_root_is_not_a_root(ground: Path, *, known_of: bool) -> None:
    roots, also = Roots(), (ground / "wide",) if known_of else ()
    (first, *_) = roots.of(writing(ground / "wide" / "inner", *also))
    os.rename(ground / "wide" / "inner", ground / "wide" / "away")
    (ground / "wide" / "inner").symlink_to(ground / "outside")

    assert roots.of(writing(ground / "wide" / "inner", *also))[0] == first


def test_a_directory_that_was_made_anew_is_the_root_by_the_next_turn(ground: Path) -> None:
    roots = Roots()
    roots.of(writing(ground / "wide" / "inner"))
    os.rename(ground / "wide" / "inner", ground / "wide" / "away")
    (ground / "wide" / "inner").mkdir()

    assert roots.of(writing(ground / "wide" / "inner")) == (root(ground / "wide" / "inner"),)


def test_links_that_lead_to_themselves_and_odd_names_are_no_roots(ground: Path) -> None:
    (ground / "loop").symlink_to("loop")
    (ground / "file").write_text("")

    assert Roots().of(writing(ground / "loop", ground / "file", Path("/a\0b"))) == ()


HIDDEN = ("/keys", "/nonexistent", "/nonexistent/config.toml", "/nonexistent/auth.json")
"""The hidden paths in the settings, and the home with the files in it that may be links."""


@pytest.mark.parametrize(
    ("mode", "network", "policy"),
    [
        ("danger-full-access", False, None),
        ("read-only", True, SandboxPolicy(unix_sockets=True, hidden=HIDDEN, mechanism="landlock")),
        (
            "workspace-write",
            True,
            SandboxPolicy(network=True, unix_sockets=True, hidden=HIDDEN, mechanism="landlock"),
        ),
    ],
)
def test_the_policy_is_what_the_settings_say(mode: str, network: bool, policy: SandboxPolicy | None) -> None:
    chosen = settings(
        sandbox_mode=mode,
        sandbox=Sandbox(hidden_paths=("/keys",), allow_unix_sockets=True, mechanism="landlock"),
        workspace_write=WorkspaceWrite(network_access=network, exclude_slash_tmp=True),
    )

    assert policy_for(chosen, Roots()) == policy
    assert read_only(chosen) == SandboxPolicy(hidden=HIDDEN, mechanism="landlock")
