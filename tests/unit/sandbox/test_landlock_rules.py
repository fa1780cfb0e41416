from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from parley.errors import SandboxUnavailable
from parley.ports.commands import Restriction, Rule
from parley.sandbox.landlock import Entry, entries, read_rules, restriction, write_rules
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.sandbox.rights import READ, WRITE, WRITE_TO_FILE, Files, files_of, network_of, scopes_of
from parley.sandbox.seccomp import program

LIST = Rule("/", int(Files.READ_DIR))

TREE = {
    "/": ("bin/", "dev/", "home/", "initrd", "tmp/"),
    "/home": ("other/", "u/"),
    "/home/u": (".netrc", ".profile", ".ssh/", "work/"),
    "/home/u/work": ("keys/", "notes", "src/"),
}
"""The entries of each directory. Names with a slash are directories."""


def listing(folder: str) -> Iterable[Entry]:
    for name in TREE[folder]:
        yield Entry(f"{folder.rstrip('/')}/{name.rstrip('/')}", name.endswith("/"))


def test_all_may_be_read_but_devices() -> None:
    assert list(read_rules(ResolvedPolicy(), listing)) == [
        LIST,
        *(Rule(path, READ) for path in ("/bin", "/home", "/initrd", "/tmp")),
    ]


def test_beside_what_is_hidden_everything_is_granted_by_itself() -> None:
    policy = ResolvedPolicy(hidden_directories=("/home/u/.ssh",), hidden_files=("/home/u/.netrc",))

    assert list(read_rules(policy, listing)) == [
        LIST,
        *(
            Rule(path, READ)
            for path in ("/bin", "/initrd", "/tmp", "/home/other", "/home/u/.profile", "/home/u/work")
        ),
    ]


def test_a_root_may_be_written_to() -> None:
    policy = ResolvedPolicy(roots=("/tmp", "/home/u/work"), hidden_directories=("/home/u/.ssh",))

    assert list(write_rules(policy, listing)) == [Rule("/tmp", WRITE), Rule("/home/u/work", WRITE)]


def test_directories_on_the_way_to_what_is_hidden_stay_as_they_are() -> None:
    policy = ResolvedPolicy(roots=("/home/u",), hidden_directories=("/home/u/work/keys",))

    assert list(write_rules(policy, listing)) == [
        Rule("/home/u/.netrc", WRITE_TO_FILE),
        Rule("/home/u/.profile", WRITE_TO_FILE),
        Rule("/home/u/.ssh", WRITE),
        Rule("/home/u/work/notes", WRITE_TO_FILE),
        Rule("/home/u/work/src", WRITE),
    ]


def test_a_root_within_something_hidden_is_granted_and_nothing_else_of_it() -> None:
    policy = ResolvedPolicy(roots=("/home/u/work",), hidden_directories=("/home/u", "/home/u/work/keys"))

    assert list(read_rules(policy, listing)) == [
        LIST,
        *(Rule(path, READ) for path in ("/bin", "/initrd", "/tmp", "/home/other")),
        *(Rule(path, READ) for path in ("/home/u/work/notes", "/home/u/work/src")),
    ]
    assert list(write_rules(policy, listing)) == [
        Rule("/home/u/work/notes", WRITE_TO_FILE),
        Rule("/home/u/work/src", WRITE),
    ]


def test_links_are_granted_nothing_nor_what_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("folder")

    found = sorted(entries(str(tmp_path)), key=lambda entry: entry.path)
    assert found == [Entry(f"{tmp_path}/file", False), Entry(f"{tmp_path}/folder", True)]
    assert list(entries(f"{tmp_path}/file")) == []
    assert list(entries(f"{tmp_path}/missing")) == []


def test_a_restriction_takes_all_that_the_kernel_can_take() -> None:
    policy = ResolvedPolicy(roots=("/tmp",))
    device = int(Files.READ_FILE | Files.WRITE_FILE | Files.TRUNCATE)

    given = restriction(policy, sandbox_policy(), abi=4, machine="x86_64", listing=listing)

    assert given == Restriction(
        handled_files=0x7FFF,
        handled_network=3,
        scoped=0,
        rules=(
            LIST,
            *(Rule(path, READ) for path in ("/bin", "/home", "/initrd")),
            Rule("/tmp", READ | WRITE),
            *(Rule(f"/dev/{name}", device) for name in ("full", "null", "random", "tty", "urandom", "zero")),
        ),
        seccomp=program("x86_64", writable=True, network=False, unix_sockets=False, namespaces=False),
    )


@pytest.mark.parametrize(
    ("abi", "files", "network", "scopes"),
    [
        (3, 0x7FFF, 0, 0),
        (4, 0x7FFF, 3, 0),
        (5, 0xFFFF, 3, 0),
        (6, 0xFFFF, 3, 3),
        (8, 0xFFFF, 3, 3),
        (9, 0x1FFFF, 3, 3),
    ],
)
def test_only_rights_that_the_kernel_knows_are_requested(abi: int, files: int, network: int, scopes: int) -> None:
    assert (files_of(abi), network_of(abi), scopes_of(abi)) == (files, network, scopes)


def test_with_the_network_and_named_sockets_both_are_left() -> None:
    free = restriction(
        ResolvedPolicy(), sandbox_policy(network=True, unix_sockets=True), abi=9, machine="x86_64", listing=listing
    )

    assert (free.handled_files, free.handled_network, free.scoped) == (0xFFFF, 0, 2)


def test_no_root_lets_a_command_make_devices() -> None:
    assert WRITE & int(Files.MAKE_CHAR | Files.MAKE_BLOCK) == 0


def test_too_many_rules_are_refused() -> None:
    def crowded(folder: str) -> Iterable[Entry]:
        return (Entry(f"{folder}{number}", False) for number in range(20_001))

    with pytest.raises(SandboxUnavailable) as refused:
        restriction(ResolvedPolicy(), sandbox_policy(), abi=7, machine="x86_64", listing=crowded)

    assert refused.value.detail == ("the directories that contain hidden paths hold too many files for Landlock")
