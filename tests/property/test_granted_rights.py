"""For nested paths, the mounts of bubblewrap and the rules of Landlock grant exactly the rights of the policy."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.common.paths import is_below
from parley.sandbox.bubblewrap import mounts
from parley.sandbox.landlock import Entry, read_rules, write_rules
from parley.sandbox.paths import depth
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.sandbox.rights import Files

NAMES = ("a", "b", ".git")
FOLDERS = [""] + [f"/{x}" for x in NAMES] + [f"/{x}/{y}" for x in NAMES for y in NAMES]
ALL = ["/", *FOLDERS[1:], *(f"{folder}/{name}" for folder in FOLDERS[4:] for name in NAMES), "/dev", "/dev/sda"]
"""The paths of a tree with three levels. The paths on the last level are files."""


def is_folder(path: str) -> bool:
    return path in ("/", "/dev") or path in FOLDERS


@st.composite
def places(draw: st.DrawFn) -> ResolvedPolicy:
    """Generate resolved policies: no path has two roles, and no protected path is inside another."""
    paths = [path for path in ALL if not path.startswith("/dev")]
    folders = [path for path in paths if is_folder(path)]
    roots = set(draw(st.lists(st.sampled_from(folders), max_size=3)))
    hidden = set(draw(st.lists(st.sampled_from(paths[1:]), max_size=3))) - roots
    git = {f"{root.rstrip('/')}/.git" for root in roots} & set(paths) - roots - hidden
    marks = roots | hidden | git

    def next_above(path: str) -> str | None:
        return max((mark for mark in marks if mark != path and is_below(path, mark)), key=depth, default=None)

    hidden = {path for path in hidden if next_above(path) not in hidden}
    git = {path for path in git if next_above(path) not in hidden | git}
    return ResolvedPolicy(
        roots=_sorted(roots),
        git_directories=_sorted(filter(is_folder, git)),
        protected=_sorted(path for path in git if not is_folder(path)),
        hidden_directories=_sorted(filter(is_folder, hidden)),
        hidden_files=_sorted(path for path in hidden if not is_folder(path)),
    )


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(paths, key=depth))


NESTED = ResolvedPolicy(roots=("/", "/a/b"), hidden_directories=("/a",), hidden_files=("/a/b/a",))
"""A policy in which four paths with different roles are nested in each other."""


@settings(deadline=None)
@given(places())
@example(NESTED)
def test_a_command_in_bubblewrap_finds_what_the_places_say(policy: ResolvedPolicy) -> None:
    laid = [("--ro-bind", "/", "/"), *mounts(policy)]

    for path in ALL[:-2]:
        on_top = [words for words in laid if words[0] != "--remount-ro" and is_below(path, words[-1])][-1]
        is_hidden = on_top[0] == "--tmpfs" or on_top[1] == "/dev/null"
        assert (is_hidden, on_top[0] == "--bind") == (policy.hides(path), policy.is_writable(path)), path


@settings(deadline=None)
@given(places())
def test_no_directory_that_leads_to_something_fenced_can_be_moved(policy: ResolvedPolicy) -> None:
    points = {words[-1] for words in mounts(policy)}

    for fenced in policy.git_directories + policy.protected + policy.hidden:
        for folder in ALL:
            if folder != fenced and is_below(fenced, folder) and policy.is_writable(folder):
                assert folder in points


@settings(deadline=None)
@given(places())
@example(NESTED)
def test_a_command_under_landlock_is_granted_what_the_places_say(policy: ResolvedPolicy) -> None:
    """Protected paths are left out, because Landlock cannot exclude them."""

    def listing(folder: str) -> Iterable[Entry]:
        inside = [path for path in ALL if path != "/" and path.rpartition("/")[0] == folder.rstrip("/")]
        return [Entry(path, is_folder(path)) for path in inside]

    rules = [*read_rules(policy, listing), *write_rules(policy, listing)]
    open_places = ResolvedPolicy(
        roots=policy.roots, hidden_directories=policy.hidden_directories, hidden_files=policy.hidden_files
    )

    for path in ALL:
        rights = 0
        for rule in rules:
            rights |= rule.rights if is_below(path, rule.path) else 0
        is_device = is_below(path, "/dev")
        if not is_folder(path):
            assert bool(rights & Files.READ_FILE) == (not policy.hides(path) and not is_device), path
            assert bool(rights & Files.WRITE_FILE) == (open_places.is_writable(path) and not is_device), path
        if rights & Files.MAKE_REG:
            assert open_places.is_writable(path)
            assert not any(is_below(hidden, path) for hidden in policy.hidden)
