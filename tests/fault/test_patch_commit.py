"""Patches that are disturbed while they are written: all files have their old content, or all have their new
content.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.builders.trees import Tree, patch, plant, tree
from parley.tools.errors import PatchChanged, PatchNotApplied
from parley.tools.patch.commit import System, commit
from parley.tools.patch.plan import Plan, verify

CHILD_SECONDS = 60

PATCH = patch(
    "*** Update File: first.txt",
    "-one",
    "+ONE",
    "*** Add File: new/deep/added.txt",
    "+added",
    "*** Update File: sub/moved.txt",
    "*** Move to: other/place.txt",
    "-two",
    "+TWO",
    "*** Delete File: sub/gone.txt",
    "*** Update File: last.txt",
    "-three",
    "+THREE",
)

WHOLE = {
    "first.txt": {None: False, b"one\n": True, b"ONE\n": True},
    "new/deep/added.txt": {None: True, b"added\n": True},
    "sub/moved.txt": {None: True, b"two\n": True},
    "other/place.txt": {None: True, b"TWO\n": True},
    "sub/gone.txt": {None: True, b"gone\n": True},
    "last.txt": {None: False, b"three\n": True, b"THREE\n": True},
}
"""The contents that each file may have at any moment: old or new. None means that the file does not exist."""

OURS = ".parley-patch-"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return planted(tmp_path / "work")


def planted(work: Path) -> Path:
    (work / "sub").mkdir(parents=True)
    plant(work, first__txt="one\n", last__txt="three\n")
    plant(work / "sub", moved__txt="two\n", gone__txt="gone\n")
    (work / "sub" / "moved.txt").chmod(0o751)
    return work


def planned(work: Path, text: str = PATCH) -> Plan:
    return verify(text, workdir=str(work), cwd=str(work))


def refusal(plan: Plan, system: System | None = None) -> str:
    with pytest.raises(PatchNotApplied) as refused:
        commit(plan.changes, system=system)
    return str(refused.value)


def contents(work: Path) -> dict[str, bytes]:
    return {name: content for name, (mode, content) in tree(work).items() if mode.startswith("-")}


DONE = {
    "first.txt": b"ONE\n",
    "last.txt": b"THREE\n",
    "new/deep/added.txt": b"added\n",
    "other/place.txt": b"TWO\n",
}


# --- names that cannot be changed --------------------------------------------------------


class Counting(System):
    """Calls a function before each rename or link."""

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before, self.calls = before, 0

    def _count(self) -> None:
        self.calls += 1
        self._before(self.calls)

    def link(self, name: str, other: str, *, folder: int) -> None:
        self._count()
        super().link(name, other, folder=folder)

    def rename(self, name: str, other: str, *, folder: int) -> None:
        self._count()
        super().rename(name, other, folder=folder)


class WithoutLinks(Counting):
    """A file system without hard links."""

    def link(self, name: str, other: str, *, folder: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_at(number: int) -> Callable[[int], None]:
    """Return a file system whose disk is full only at the rename or link with this number."""
    return lambda call: full() if call == number else None


def names_changed(work: Path, kind: type[Counting]) -> int:
    """Return the number of renames and links of an undisturbed commit."""
    counting = kind(lambda _: None)
    commit(planned(work).changes, system=counting)
    return counting.calls


@pytest.mark.parametrize("kind", [Counting, WithoutLinks])
def test_every_file_is_written_and_nothing_is_left_over(work: Path, kind: type[Counting]) -> None:
    names_changed(work, kind)

    assert contents(work) == DONE
    assert tree(work)["other/place.txt"][0] == "-rwxr-x--x"


@pytest.mark.promises("patch.whole")
@pytest.mark.parametrize("kind", [Counting, WithoutLinks])
def test_a_failure_at_any_name_takes_everything_back(tmp_path: Path, kind: type[Counting]) -> None:
    count = names_changed(planted(tmp_path / "whole"), kind)
    assert count >= 6

    for number in range(1, count + 1):
        work = planted(tmp_path / f"work{number}")
        before = tree(work)

        message = refusal(planned(work), kind(full_at(number)))

        assert message.startswith("Failed to ")
        assert message.endswith(": No space left on device (os error 28)")
        assert tree(work) == before


def test_a_file_that_cannot_be_restored_is_named_and_not_lost(work: Path) -> None:
    def fails_from_the_second_replacement_on(call: int) -> None:
        if call > 2:
            full()

    message = refusal(
        planned(work, patch("*** Update File: first.txt", "-one", "+ONE", "*** Update File: last.txt", "-three")),
        Counting(fails_from_the_second_replacement_on),
    )

    (leftover,) = work.glob(f"{OURS}*")
    assert message == (
        "Failed to write file last.txt: No space left on device (os error 28); first.txt could not be restored: "
        f"No space left on device (os error 28), its old content is in {leftover}"
    )
    assert leftover.read_bytes() == b"one\n"


# --- a process that is killed ------------------------------------------------------------

KILLED = """
import os, signal, sys
from parley.tools.patch.commit import System, commit
from parley.tools.patch.plan import verify

class Killed(System):
    def __init__(self, left, afterwards):
        self.left, self.afterwards = left, afterwards
    def _step(self, change, *names, folder):
        self.left -= 1
        if self.afterwards:
            change(*names, folder=folder)
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.afterwards:
            change(*names, folder=folder)
    def link(self, *names, folder): self._step(super().link, *names, folder=folder)
    def rename(self, *names, folder): self._step(super().rename, *names, folder=folder)
    def unlink(self, *names, folder): self._step(super().unlink, *names, folder=folder)

patch = sys.stdin.read()
for work in sys.argv[1:]:
    child = os.fork()
    if not child:
        number, afterwards = os.path.basename(work).split("-")
        plan = verify(patch, workdir=work, cwd=work)
        commit(plan.changes, system=Killed(int(number), afterwards == "after"))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run_child(script: str, *arguments: str, before: tuple[str, ...] = (), stdin: str = PATCH) -> str:
    return subprocess.run(
        [*before, sys.executable, "-c", script, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=True,
    ).stdout


@pytest.mark.promises("patch.whole")
def test_a_kill_at_any_name_leaves_every_file_whole(tmp_path: Path) -> None:
    places = [planted(tmp_path / f"{number}-{when}") for number in range(1, 25) for when in ("before", "after")]

    codes = run_child(KILLED, *map(str, places)).split()

    killed = codes.count("-9")
    assert 2 * 14 <= killed < len(codes)
    assert codes == ["-9"] * killed + ["0"] * (len(codes) - killed)
    for place in places:
        found = {name: content for name, content in contents(place).items() if OURS not in name}
        assert found.keys() <= WHOLE.keys()
        assert [name for name, states in WHOLE.items() if not states.get(found.get(name))] == []
        assert "sub/moved.txt" in found or "other/place.txt" in found


# --- a disk that is full -----------------------------------------------------------------

FULL = """
import resource, sys
from parley.tools.errors import PatchChanged, PatchNotApplied
from parley.tools.patch.commit import commit
from parley.tools.patch.plan import verify

work, limit = sys.argv[1:]
plan = verify(sys.stdin.read(), workdir=work, cwd=work)
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    commit(plan.changes)
except PatchNotApplied as refused:
    print(refused)
"""

LARGE = patch("*** Update File: first.txt", "-one", "+ONE", "*** Add File: new/large.txt", "+" + "x" * 300_000)


def test_a_file_that_cannot_be_written_whole_is_not_written_at_all(work: Path) -> None:
    before = tree(work)

    output = run_child(FULL, str(work), "100000", stdin=LARGE)

    assert output == "Failed to write file new/large.txt: File too large (os error 27)\n"
    assert tree(work) == before


IN_A_SMALL_PLACE = """
set -e
mount -t tmpfs -o size=128k none "$1"
printf 'one\\n' > "$1/first.txt"
"$2" -c "$3" "$1" 0
ls -A "$1"; cat "$1/first.txt"
"""


def is_allowed(*command: str) -> bool:
    return (
        bool(shutil.which(command[0])) and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def test_a_full_disk_is_left_as_it_was(tmp_path: Path) -> None:
    own_mounts = ("unshare", "--mount")
    if not is_allowed(*own_mounts, "true"):
        pytest.skip("only root may mount a small file system")

    output = subprocess.run(
        [*own_mounts, "sh", "-c", IN_A_SMALL_PLACE, "sh", str(tmp_path), sys.executable, FULL],
        input=LARGE,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=True,
    ).stdout

    failure = "Failed to write file new/large.txt: No space left on device (os error 28)"
    assert output.splitlines() == [failure, "first.txt", "one"]


# --- other processes ---------------------------------------------------------------------


def rewrite(work: Path) -> None:
    (work / "last.txt").write_text("theirs\n")


def replace_by_the_same(work: Path) -> None:
    (work / "theirs").write_text("three\n")
    (work / "theirs").replace(work / "last.txt")


def change_mode(work: Path) -> None:
    (work / "last.txt").chmod(0o600)


def remove(work: Path) -> None:
    (work / "last.txt").unlink()


def replace_by_a_link(work: Path) -> None:
    (work / "last.txt").unlink()
    (work / "last.txt").symlink_to("first.txt")


def replace_by_a_pipe(work: Path) -> None:
    (work / "last.txt").unlink()
    os.mkfifo(work / "last.txt")


def rewrite_what_is_deleted(work: Path) -> None:
    (work / "sub" / "gone.txt").write_text("theirs\n")


def add_what_is_added(work: Path) -> None:
    (work / "new" / "deep").mkdir(parents=True, exist_ok=True)
    (work / "new" / "deep" / "added.txt").write_text("theirs\n")


def put_a_link_in_the_way(work: Path) -> None:
    outside = work.parent / "outside"
    (work / "sub").rename(outside)
    (work / "sub").symlink_to(outside)


def put_a_link_where_a_directory_is_made(work: Path) -> None:
    (work.parent / "outside").mkdir()
    (work / "new").symlink_to(work.parent / "outside")


@pytest.mark.parametrize(
    ("disturb", "expected"),
    [
        (rewrite, "Failed to write file last.txt: it changed after the patch was verified"),
        (change_mode, "Failed to write file last.txt: it changed after the patch was verified"),
        (remove, "Failed to write file last.txt: No such file or directory (os error 2)"),
        (replace_by_a_link, "Failed to write file last.txt: Too many levels of symbolic links (os error 40)"),
        (replace_by_a_pipe, "Failed to write file last.txt: it changed after the patch was verified"),
        (rewrite_what_is_deleted, "Failed to delete file sub/gone.txt: it changed after the patch was verified"),
        (add_what_is_added, "Failed to write file new/deep/added.txt: File exists (os error 17)"),
        (put_a_link_in_the_way, "Failed to write file other/place.txt: {work}/sub is a symbolic link"),
        (
            put_a_link_where_a_directory_is_made,
            "Failed to write file new/deep/added.txt: {work}/new is a symbolic link",
        ),
    ],
)
def test_a_change_after_verification_is_detected_and_nothing_is_written(
    work: Path, disturb: Callable[[Path], None], expected: str
) -> None:
    plan = planned(work)
    disturb(work)
    before = tree(work.parent)

    assert refusal(plan) == expected.format(work=work)
    assert tree(work.parent) == before


class Disturbed(Counting):
    """Calls another writer directly before the first rename."""

    def __init__(self, disturb: Callable[[Path], None], work: Path) -> None:
        super().__init__(lambda call: disturb(work) if call == 1 else None)


@pytest.mark.parametrize(
    ("disturb", "expected"),
    [
        (rewrite, "Failed to write file last.txt: it changed after the patch was verified"),
        (replace_by_the_same, "Failed to write file last.txt: it changed after the patch was verified"),
        (remove, "Failed to write file last.txt: No such file or directory (os error 2)"),
        (rewrite_what_is_deleted, "Failed to delete file sub/gone.txt: it changed after the patch was verified"),
        (add_what_is_added, "Failed to write file new/deep/added.txt: File exists (os error 17)"),
    ],
)
def test_a_file_that_changes_during_the_renames_is_kept_and_the_rest_is_restored(
    tmp_path: Path, disturb: Callable[[Path], None], expected: str
) -> None:
    work, likewise = planted(tmp_path / "work"), planted(tmp_path / "likewise")
    disturb(likewise)

    assert refusal(planned(work), Disturbed(disturb, work)) == expected
    assert tree(work) == tree(likewise)


def test_a_file_that_appears_is_not_overwritten_where_there_are_no_links(work: Path) -> None:
    plan = planned(work)
    add_what_is_added(work)
    before = tree(work)

    message = refusal(plan, WithoutLinks(lambda _: None))

    assert message == "Failed to write file new/deep/added.txt: File exists (os error 17)"
    assert tree(work) == before


def test_a_directory_swapped_for_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    work, victim = planted(tmp_path / "work"), planted(tmp_path / "victim")
    untouched = tree(victim)

    def swap(work: Path) -> None:
        (work / "sub").rename(work / "away")
        (work / "sub").symlink_to(victim / "sub")

    commit(planned(work).changes, system=Disturbed(swap, work))

    assert tree(victim) == untouched
    assert contents(work) == DONE


@pytest.mark.parametrize("name", ["sub", "new", "other"])
def test_an_approved_patch_is_written_only_to_the_verified_directories(tmp_path: Path, name: str) -> None:
    work, other = planted(tmp_path / "work"), planted(tmp_path / "other")
    plan = planned(work)
    if (work / name).exists():
        (work / name).rename(work / "aside")
    (other / "sub").rename(work / name)
    before = tree(work)

    with pytest.raises(PatchChanged, match="it changed after the patch was verified"):
        commit(plan.changes, expected=plan.folders)

    assert tree(work) == before


class Another:
    """A second commit in another thread."""

    def __init__(self, plan: Plan) -> None:
        self.outcome = ""
        self._plan, self._thread = plan, threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            commit(self._plan.changes)
            self.outcome = "done"
        except PatchNotApplied as refused:
            self.outcome = str(refused)

    def start(self) -> None:
        self._thread.start()

    def has_ended(self, *, within_seconds: float) -> bool:
        self._thread.join(within_seconds)
        return not self._thread.is_alive()


class Overtaken(System):
    """A commit that is about to rename when another one begins."""

    def __init__(self, another: Another, *, for_seconds: float) -> None:
        self._another, self._seconds = another, for_seconds
        self.was_overtaken = False

    def rename(self, name: str, other: str, *, folder: int) -> None:
        self._another.start()
        self.was_overtaken = self._another.has_ended(within_seconds=self._seconds)
        super().rename(name, other, folder=folder)


@pytest.mark.parametrize("also", ["", "/elsewhere/a.txt"])
def test_a_second_patch_for_a_file_waits_and_is_refused(work: Path, also: str) -> None:
    add = [f"*** Add File: {work.parent}{also}", "+a"] if also else []
    first = planned(work, patch("*** Update File: first.txt", "-one", "+a"))
    another = Another(planned(work, patch("*** Update File: first.txt", "-one", "+b", *add)))
    # Even if the other commit had unlimited time, it must not run between comparing and renaming.
    overtaken = Overtaken(another, for_seconds=0.5)

    commit(first.changes, system=overtaken)

    assert another.has_ended(within_seconds=CHILD_SECONDS)
    assert not overtaken.was_overtaken
    assert another.outcome == "Failed to write file first.txt: it changed after the patch was verified"
    assert contents(work)["first.txt"] == b"a\n"


# --- metadata that cannot be preserved, and files that cannot be removed -----------------------

AS_ANOTHER_USER = """
import json, os, sys
from parley.tools.errors import PatchChanged, PatchNotApplied
from parley.tools.patch.commit import commit
from parley.tools.patch.plan import verify

work = sys.argv[1]
os.setgroups([])
os.setgid(1000)
os.setuid(1000)
for patch in json.load(sys.stdin):
    try:
        commit(verify(patch, workdir=work, cwd=work).changes)
        print("done")
    except PatchNotApplied as refused:
        print(refused)
"""


def update(name: str) -> str:
    return patch(f"*** Update File: {name}", "-x", "+y")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Create a directory of user 1000 that contains files of other users."""
    if os.geteuid():
        pytest.skip("only root can have files of several users")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "sticky").mkdir()
        for file, user, group in (
            ("own", 1000, 1000),
            ("theirs", 2000, 2000),
            ("of_their_group", 1000, 2000),
            ("noted", 1000, 1000),
            ("sticky/theirs", 2000, 2000),
            ("sticky/own", 1000, 1000),
        ):
            (path / file).write_text("x\n")
            os.chown(path / file, user, group)
            (path / file).chmod(0o666)
        os.chown(path, 1000, 1000)
        path.chmod(0o755)
        (path / "sticky").chmod(0o1777)
        yield path


def test_a_file_whose_owner_cannot_be_kept_is_left_alone(shared: Path) -> None:
    before = tree(shared)
    patches = {
        update("own"): "done",
        update("sticky/own"): "done",
        update("theirs"): "Failed to write file theirs: its owner cannot be kept",
        update("of_their_group"): "Failed to write file of_their_group: its group cannot be kept",
        update("sticky/theirs"): "Failed to write file sticky/theirs: its owner cannot be kept",
        patch("*** Update File: theirs", "*** Move to: moved"): (
            "Failed to write file moved: its owner cannot be kept"
        ),
        patch("*** Delete File: sticky/theirs"): (
            "Failed to delete file sticky/theirs: Operation not permitted (os error 1)"
        ),
    }

    output = run_child(AS_ANOTHER_USER, str(shared), stdin=json.dumps([*patches]))

    changed = dict.fromkeys(("own", "sticky/own"), ("-rw-rw-rw-", b"y\n"))
    assert output.splitlines() == [*patches.values()]
    assert tree(shared) == {**before, **changed}
    assert {(shared / name).stat().st_uid for name in changed} == {1000}


def test_a_file_whose_extended_attributes_cannot_be_kept_is_left_alone(shared: Path) -> None:
    try:
        os.setxattr(shared / "noted", "security.note", b"by root alone")
    except OSError:
        pytest.skip("the file system has no such attributes")
    before = tree(shared)

    output = run_child(AS_ANOTHER_USER, str(shared), stdin=json.dumps([update("noted")]))

    assert output == "Failed to write file noted: its extended attribute security.note cannot be kept\n"
    assert tree(shared) == before


class UnremovableFiles(System):
    """A file system in which temporary files cannot be removed."""

    def unlink(self, name: str, *, folder: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_remaining_temporary_file_is_named(work: Path) -> None:
    message = commit(
        planned(work, patch("*** Update File: first.txt", "-one", "+ONE")).changes, system=UnremovableFiles()
    )

    (leftover,) = work.glob(f"{OURS}*")
    assert message == (f"{leftover} could not be removed: Operation not permitted (os error 1)",)
    assert leftover.read_bytes() == b"one\n"


def test_a_remaining_temporary_file_of_a_failed_patch_is_named(work: Path) -> None:
    plan = planned(work, patch("*** Update File: first.txt", "-one", "+ONE"))
    (work / "first.txt").write_text("theirs\n")

    message = refusal(plan, UnremovableFiles())

    (leftover,) = work.glob(f"{OURS}*")
    assert message == (
        "Failed to write file first.txt: it changed after the patch was verified; "
        f"{leftover} could not be removed: Operation not permitted (os error 1)"
    )


# --- the disk ----------------------------------------------------------------------------


class Syncing(System):
    def __init__(self) -> None:
        self.synced = 0

    def fsync(self, descriptor: int) -> None:
        self.synced += 1
        super().fsync(descriptor)


@pytest.mark.parametrize(("files", "synced"), [(1, 1), (64, 64), (65, 0)])
def test_replaced_files_are_waited_for_until_they_are_on_the_disk_unless_there_are_very_many(
    tmp_path: Path, files: int, synced: int
) -> None:
    plant(tmp_path, **{f"f{number}": "x\n" for number in range(files)})
    system = Syncing()
    text = patch("*** Add File: new", "+x", *(f"*** Update File: f{number}\n-x\n+y" for number in range(files)))

    commit(planned(tmp_path, text).changes, system=system)

    assert system.synced == synced


# --- many files ------------------------------------------------------------------------------


def test_many_directories_need_few_descriptors(tmp_path: Path) -> None:
    hunks = [line for number in range(400) for line in (f"*** Add File: {number}/a/f", f"+{number}")]
    most = 0

    def look(_: int) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    commit(planned(tmp_path, patch(*hunks)).changes, system=Counting(look))

    found: Tree = tree(tmp_path)
    assert {name: found[name][1] for name in found if name.endswith("/f")} == {
        f"{number}/a/f": f"{number}\n".encode() for number in range(400)
    }
    assert most - before < 150
    assert len(os.listdir("/proc/self/fd")) == before
