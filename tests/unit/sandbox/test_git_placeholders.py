from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from kit.attacks.nobody import NOBODY
from kit.builders.sandbox_policies import sandbox_policy
from kit.system.commands import open_descriptors
from parley.errors import SandboxUnavailable
from parley.sandbox.git_placeholders import GitPlaceholder, add_placeholders, release_all
from parley.sandbox.resolved_policy import ResolvedPolicy, resolve


def taken(path: Path) -> GitPlaceholder:
    placeholder = GitPlaceholder.acquire(str(path))
    assert placeholder is not None
    return placeholder


def test_the_last_one_to_leave_removes_it(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    descriptors = open_descriptors()
    first, second = taken(place), taken(place)

    first.release()
    assert place.is_dir()
    second.release()

    assert not place.exists()
    assert open_descriptors() == descriptors


def test_a_placeholder_of_a_killed_server_is_used_and_removed(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    place.mkdir()

    taken(place).release()

    assert not place.exists()


def test_a_repository_that_was_created_there_meanwhile_stays(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    placeholder = taken(place)
    (place / "HEAD").write_text("")

    placeholder.release()

    assert (place / "HEAD").exists()


def test_many_that_come_and_go_at_the_same_time_leave_nothing(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    seen: list[bool] = []

    def come_and_go() -> None:
        for _ in range(100):
            placeholder = taken(place)
            seen.append(place.is_dir())
            release_all([placeholder])

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (seen, place.exists()) == ([True] * 400, False)


def test_a_placeholder_that_another_process_is_removing_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    place.mkdir()
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """Remove the directory in the last pause."""
        pauses.append(seconds)
        if len(pauses) == 499:
            place.rmdir()
            os.close(descriptor)

    placeholder = GitPlaceholder.acquire(str(place), pause=pause)

    assert placeholder is not None
    assert place.is_dir()
    assert sum(pauses) >= 0.4
    release_all([placeholder])


def test_a_placeholder_that_another_process_keeps_locked_is_refused(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    place.mkdir()
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    try:
        with pytest.raises(SandboxUnavailable) as refused:
            GitPlaceholder.acquire(str(place))
    finally:
        os.close(descriptor)

    assert refused.value.detail == f"{place} cannot be protected: another process keeps it locked"


def test_where_another_user_keeps_one_locked_nothing_is_written(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    tmp_path.chmod(0o1777)
    (tmp_path / ".git").mkdir()
    os.chown(tmp_path / ".git", NOBODY, NOBODY)
    own = tmp_path / "own"
    own.mkdir()
    descriptor = os.open(tmp_path / ".git", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    placeholders: list[GitPlaceholder] = []

    try:
        left = add_placeholders(resolve(sandbox_policy(tmp_path, own)), placeholders)
        inside = add_placeholders(resolve(sandbox_policy(tmp_path, tmp_path.parent)), placeholders)
    finally:
        os.close(descriptor)
        release_all(placeholders)

    assert left == ResolvedPolicy(roots=(str(own),), missing_git=(f"{own}/.git",))
    assert (inside.roots, inside.protected) == ((str(tmp_path.parent),), (str(tmp_path),))


def test_a_link_above_it_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").symlink_to("elsewhere")

    with pytest.raises(SandboxUnavailable):
        GitPlaceholder.acquire(f"{tmp_path}/project/.git")

    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    place = tmp_path / ".git"
    place.symlink_to(tmp_path)

    with pytest.raises(SandboxUnavailable) as refused:
        GitPlaceholder.acquire(str(place))

    assert refused.value.detail == f"{place} cannot be protected: Not a directory (os error 20)"


def test_a_placeholder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable) as refused:
        GitPlaceholder.acquire(f"{tmp_path}/missing/.git")

    assert refused.value.detail == (
        f"{tmp_path}/missing/.git cannot be protected: No such file or directory (os error 2)"
    )
