"""Git in a command without an approval runs no program that a repository configures.

Without these settings, it does.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.git import git
from parley.tools.commands.environment import with_restricted_git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a change, an invalid signature, and a program that creates a file when it runs."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git("init", "--quiet", cwd=repository)
    (repository / "file").write_text("one\n")
    git("add", "file", cwd=repository)
    tree = git("write-tree", cwd=repository).decode().strip()
    signed = (
        f"tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n"
        "gpgsig -----BEGIN PGP SIGNATURE-----\n \n eA==\n -----END PGP SIGNATURE-----\n\nmessage\n"
    )
    commit = git("hash-object", "-t", "commit", "-w", "--stdin", cwd=repository, stdin=signed.encode()).decode()
    git("update-ref", "HEAD", commit.strip(), cwd=repository)
    (repository / "file").write_text("two\n")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    program.chmod(0o755)
    return repository


def run_git(*arguments: str, cwd: Path, safe: bool) -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *arguments],
        cwd=cwd,
        env=with_restricted_git(env) if safe else env,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def has_run(repository: Path, *arguments: str, safe: bool) -> bool:
    """Return whether the program ran while Git executed these arguments. Git itself must succeed."""
    mark = repository.parent / "ran"
    mark.unlink(missing_ok=True)
    done = run_git(*arguments, cwd=repository, safe=safe)
    assert not safe or (done.returncode, done.stderr) == (0, b"")
    return mark.exists()


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [
        ("core.fsmonitor", ("status",)),
        ("core.fsmonitor", ("diff", "HEAD")),
        ("gpg.program", ("log",)),
        ("gpg.program", ("show",)),
    ],
)
def test_a_program_that_a_repository_names_is_run_by_git_as_it_comes_and_not_by_a_tame_one(
    repository: Path, setting: str, arguments: tuple[str, ...]
) -> None:
    git("config", setting, f"{repository.parent}/program", cwd=repository)
    git("config", "log.showSignature", "true", cwd=repository)

    runs = {safe: has_run(repository, *arguments, safe=safe) for safe in (False, True)}

    assert runs == {False: True, True: False}


@pytest.mark.parametrize("setting", ["gpg.program", "gpg.openpgp.program"])
@pytest.mark.parametrize("command", ["log", "show"])
def test_a_repository_format_with_signatures_starts_no_signature_checker(
    repository: Path, setting: str, command: str
) -> None:
    git("config", setting, f"{repository.parent}/program", cwd=repository)
    git("config", "format.pretty", "format:%h %G?", cwd=repository)

    runs = {safe: has_run(repository, command, safe=safe) for safe in (False, True)}

    assert runs == {False: True, True: False}


def test_hooks_are_run_by_git_as_it_comes_and_not_by_a_tame_one(repository: Path) -> None:
    (repository.parent / "program").rename(repository / ".git" / "hooks" / "post-index-change")

    def touched(*, safe: bool) -> bool:
        os.utime(repository / "file", (safe, safe))  # so that the index is out of date
        return has_run(repository, "status", safe=safe)

    assert {safe: touched(safe=safe) for safe in (False, True)} == {False: True, True: False}


def test_a_directory_that_passes_for_a_repository_is_none_for_a_restricted_git(repository: Path) -> None:
    git("init", "--quiet", "--bare", "bare", cwd=repository)

    found = {safe: run_git("log", cwd=repository / "bare", safe=safe) for safe in (False, True)}

    assert b"does not have any commits yet" in found[False].stderr
    assert b"cannot use bare repository" in found[True].stderr


def test_a_restricted_git_fetches_nothing(repository: Path) -> None:
    fetched = {
        safe: run_git("ls-remote", f"file://{repository}", cwd=repository.parent, safe=safe)
        for safe in (False, True)
    }

    assert b"\tHEAD\n" in fetched[False].stdout
    assert (fetched[True].stdout, b"not allowed" in fetched[True].stderr) == (b"", True)
