"""Properties of the sandbox that can only be tested as an ordinary user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.attacks.confined import MODES
from kit.attacks.nobody import NOBODY, as_nobody
from kit.system.needs import BUBBLEWRAP, MECHANISMS
from parley.config.types import Mechanism


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_program_of_another_user_gives_no_rights(mechanism: Mechanism) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make a program that gives his rights away")
    place = Path("/var/tmp") / f"parley-{os.getpid()}-{mechanism}"
    place.mkdir()
    try:
        shutil.copy("/usr/bin/id", place / "id")
        (place / "id").chmod(0o4755)
        place.chmod(0o755)
        script = f"""
from kit.attacks.confined import MODES, Confined
with Confined() as confined:
    for policy in (None, *(mode.policy({mechanism!r}) for mode in MODES)):
        print(confined.run(policy, {str(place / "id")!r}, "-u").stdout.decode().strip())
"""
        said = as_nobody("-c", script).split()
    finally:
        shutil.rmtree(place)
    if said[:1] == [str(NOBODY)]:
        pytest.skip("this computer itself gives no rights to such programs")

    assert said == ["0", *[str(NOBODY)] * len(MODES)]


@pytest.mark.long
@BUBBLEWRAP
def test_a_fork_bomb_comes_to_an_end_by_itself_in_namespaces_of_its_own() -> None:
    bomb = """
import os, signal
count = 0
try:
    while count < 600:
        if os.fork() == 0: signal.pause()
        count += 1
except BlockingIOError: pass
print(count)
"""
    script = f"""
from kit.attacks.confined import MODES, Confined
from kit.system.commands import PYTHON
with Confined() as confined:
    for policy in (None, MODES[0].policy("bubblewrap")):
        print(confined.run(policy, *PYTHON, {bomb!r}).stdout.decode())
"""
    by_itself, count = map(int, as_nobody("-c", script).split())
    if by_itself < 600:
        pytest.skip("this computer itself does not let a user have so many processes")

    assert 100 < count < 512


CLOSED_PLACES = (".git", ".git/hooks", ".git/config", ".")

CLOSED = """
import os, tempfile
from kit.attacks.confined import MODES, Confined
from parley.errors import SandboxUnavailable

def state(project, place, confined):
    os.makedirs(f"{project}/.git/hooks")
    with open(f"{project}/.git/config", "w") as config: config.write("kept")
    policy = MODES[1].policy(MECHANISM, project)
    ran = []
    for script in (
        f"echo evil > .git/hooks/pre-commit; echo evil > .git/config; chmod 0 {place}; exit 1",
        f"chmod 755 {place}; exit 1",
        "true",
    ):
        try:
            confined.run(policy, "sh", "-c", script, cwd=project)
            ran.append(script)
        except SandboxUnavailable:
            pass  # nothing runs until the user has looked at it
    os.chmod(project, 0o700)
    os.chmod(f"{project}/.git", 0o755)
    os.chmod(f"{project}/.git/hooks", 0o755)
    return os.listdir(f"{project}/.git/hooks"), open(f"{project}/.git/config").read().strip(), len(ran)

with Confined() as confined:
    for place in PLACES:
        with tempfile.TemporaryDirectory() as project:
            print(place, *state(project, place, confined))
"""
"""A program that runs two commands.

The first removes all rights from a directory, so that the directory cannot be restored; the second sets the rights
again.
"""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_repository_that_is_closed_to_the_server_is_restored_or_left_for_the_user(mechanism: Mechanism) -> None:
    said = as_nobody(
        "-c", CLOSED.replace("MECHANISM", repr(mechanism)).replace("PLACES", repr(CLOSED_PLACES))
    ).splitlines()

    assert [line.rpartition(" ")[0] for line in said[:3]] == [f"{place} [] kept" for place in CLOSED_PLACES[:3]]
    # The server does not change the mode itself. No other command runs in the project until the user has accepted
    # it.
    assert said[3].endswith(" 1")
