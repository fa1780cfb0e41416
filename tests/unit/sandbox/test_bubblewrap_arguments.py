from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Mount, Output
from parley.sandbox.bubblewrap import Bubblewrap, arguments, expected_mounts, is_trustworthy, mounts, supports_size
from parley.sandbox.protected_files import ProtectedFiles
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.sandbox.seccomp import program


def test_nothing_can_be_written_to_without_a_root() -> None:
    words = arguments(
        ResolvedPolicy(), cwd="/here", env={"A": "1"}, network=False, has_proc=True, has_size_option=True
    )

    assert words == (
        "--die-with-parent",
        "--new-session",
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--unshare-net",
        *("--ro-bind", "/", "/"),
        *("--dev", "/dev", "--size", "67108864", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--proc", "/proc", "--remount-ro", "/proc"),
        *("--cap-drop", "ALL", "--chdir", "/here", "--unsetenv", "PATH"),
        *("--setenv", "A", "1"),
    )


def test_with_the_network_and_without_a_proc_of_its_own() -> None:
    words = arguments(ResolvedPolicy(), cwd="/", env={}, network=True, has_proc=False, has_size_option=True)

    assert "--unshare-net" not in words
    assert "--proc" not in words
    assert words[words.index("/proc") - 1 :][:4] == ("--tmpfs", "/proc", "--remount-ro", "/proc")


def test_memory_that_is_shared_is_not_limited_where_the_launcher_does_not_know_how() -> None:
    words = arguments(ResolvedPolicy(), cwd="/", env={}, network=True, has_proc=True, has_size_option=False)

    at = words.index("--dev")
    assert words[at : at + 6] == ("--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    assert "--size" not in words


@pytest.mark.parametrize(
    ("version", "mode", "knows"),
    [
        ((0, 8, 0), 0o755, True),
        ((0, 7), 0o755, True),
        ((0, 6, 3), 0o755, False),
        ((0, 8), 0o4755, False),
        ((), 0o755, False),
    ],
)
def test_sizes_are_known_since_a_version_and_not_to_one_with_the_rights_of_root(
    tmp_path: Path, version: tuple[int, ...], mode: int, knows: bool
) -> None:
    program = tmp_path / "bwrap"
    program.touch()
    program.chmod(mode)

    assert supports_size(str(program), version) is knows


def test_outer_mounts_come_first_and_what_is_fenced_lies_over_its_root() -> None:
    policy = ResolvedPolicy(
        roots=("/w", "/w/a/b"),
        git_directories=("/w/a/b/.git",),
        protected=("/w/a/b/.codex",),
        missing_git=("/w/.git",),
        hidden_directories=("/home/u/.ssh", "/w/c/keys"),
        hidden_files=("/home/u/.netrc",),
    )

    assert list(mounts(policy)) == [
        ("--bind", "/w", "/w"),
        ("--ro-bind", "/w/.git", "/w/.git"),
        ("--bind", "/w/a", "/w/a"),
        ("--bind", "/w/c", "/w/c"),
        ("--ro-bind", "/dev/null", "/home/u/.netrc"),
        ("--tmpfs", "/home/u/.ssh"),
        ("--bind", "/w/a/b", "/w/a/b"),
        ("--tmpfs", "/w/c/keys"),
        ("--ro-bind", "/w/a/b/.codex", "/w/a/b/.codex"),
        ("--ro-bind", "/w/a/b/.git", "/w/a/b/.git"),
        ("--remount-ro", "/home/u/.ssh"),
        ("--remount-ro", "/w/c/keys"),
    ]


def test_no_directory_within_something_protected_becomes_writable_by_being_held_in_place() -> None:
    policy = ResolvedPolicy(roots=("/w",), git_directories=("/w/.git",), hidden_files=("/w/.git/sub/secret",))

    assert list(mounts(policy)) == [
        ("--bind", "/w", "/w"),
        ("--ro-bind", "/w/.git", "/w/.git"),
        ("--ro-bind", "/dev/null", "/w/.git/sub/secret"),
    ]


def test_a_root_within_something_hidden_is_laid_over_it() -> None:
    policy = ResolvedPolicy(roots=("/h/w",), hidden_directories=("/h",), git_directories=("/h/w/.git",))

    assert list(mounts(policy)) == [
        ("--tmpfs", "/h"),
        ("--bind", "/h/w", "/h/w"),
        ("--ro-bind", "/h/w/.git", "/h/w/.git"),
        ("--remount-ro", "/h"),
    ]


def test_hidden_paths_in_dev_are_not_in_the_dev_of_a_command() -> None:
    folders, files = ("/dev", "/dev/pts", "/dev/shm", "/dev/shm/keys"), ("/dev/null", "/dev/tty0", "/device")

    assert list(mounts(ResolvedPolicy(hidden_directories=folders, hidden_files=files))) == [
        ("--tmpfs", "/dev"),
        ("--ro-bind", "/dev/null", "/device"),
        ("--tmpfs", "/dev/shm"),
        ("--tmpfs", "/dev/shm/keys"),
        *(("--remount-ro", "/dev"), ("--remount-ro", "/dev/shm"), ("--remount-ro", "/dev/shm/keys")),
    ]
    assert list(mounts(ResolvedPolicy(roots=("/dev",), hidden_directories=("/dev/pts",)))) == [
        ("--bind", "/dev", "/dev"),
        ("--tmpfs", "/dev/pts"),
        ("--remount-ro", "/dev/pts"),
    ]


def test_nothing_of_the_computer_s_own_is_laid_over_what_a_command_has_for_itself() -> None:
    policy = ResolvedPolicy(
        roots=("/",), hidden_directories=("/dev/shm/keys", "/proc/sys/dev"), hidden_files=("/dev/tty0",)
    )

    assert list(mounts(policy)) == [
        ("--bind", "/", "/"),
        ("--tmpfs", "/dev/shm/keys"),
        ("--tmpfs", "/proc/sys/dev"),
        *(("--remount-ro", "/dev/shm/keys"), ("--remount-ro", "/proc/sys/dev")),
    ]


@pytest.mark.parametrize("has_proc", [True, False])
def test_hidden_paths_in_proc_are_covered_and_not_checked(has_proc: bool) -> None:
    policy = ResolvedPolicy(hidden_directories=("/proc/bus",), hidden_files=("/proc/kcore",))
    words = arguments(policy, cwd="/", env={}, network=True, has_proc=has_proc, has_size_option=True)

    assert [word for word in words if word.startswith("/proc/")] == (
        ["/proc/bus", "/proc/kcore", "/proc/bus"] if has_proc else []
    )
    assert laid_upon(policy) == laid_upon(ResolvedPolicy())


def test_all_can_be_the_root() -> None:
    words = arguments(
        ResolvedPolicy(roots=("/",), missing_git=("/.git",)),
        cwd="/",
        env={},
        network=True,
        has_proc=True,
        has_size_option=True,
    )

    at = words.index("--bind")
    assert words[at : at + 3] == ("--bind", "/", "/")
    assert words[at + 3] == "--dev"
    assert words[words.index("--ro-bind") :][:3] == ("--ro-bind", "/.git", "/.git")


def laid_upon(policy: ResolvedPolicy) -> list[tuple[str, str | None, bool]]:
    return [(each.place, each.source, each.writable) for each in expected_mounts(policy)]


def test_expected_mounts_are_in_the_order_of_the_options() -> None:
    policy = ResolvedPolicy(
        roots=("/w",), missing_git=("/w/.git",), hidden_directories=("/w/keys",), hidden_files=("/home/u/.netrc",)
    )

    assert laid_upon(policy) == [
        ("/", "/", False),
        ("/dev", None, False),
        ("/dev/shm", None, True),
        ("/proc", None, False),
        ("/w", "/w", True),
        ("/w/.git", "/w/.git", False),
        ("/w/keys", None, False),
        ("/home/u/.netrc", "/dev/null", False),
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            ResolvedPolicy(roots=("/",)),
            [("/", "/", True), ("/dev", None, False), ("/dev/shm", None, True), ("/proc", None, False)],
        ),
        (
            ResolvedPolicy(roots=("/dev/shm",)),
            [
                *(("/", "/", False), ("/dev", None, False), ("/dev/shm", None, True), ("/proc", None, False)),
                ("/dev/shm", "/dev/shm", True),
            ],
        ),
        (
            ResolvedPolicy(roots=("/dev",)),
            [("/", "/", False), ("/dev", None, False), ("/proc", None, False), ("/dev", "/dev", True)],
        ),
    ],
)
def test_of_the_permanent_mounts_the_visible_ones_are_listed(
    policy: ResolvedPolicy, expected: list[tuple[str, str | None, bool]]
) -> None:
    assert laid_upon(policy) == expected


@pytest.mark.parametrize(
    ("mode", "folder_mode", "trusted"),
    [
        (0o755, 0o755, True),
        (0o775, 0o755, False),
        (0o757, 0o755, False),
        (0o755, 0o777, False),
        (0o644, 0o755, False),
    ],
)
def test_only_root_s_own_programs_are_launchers(tmp_path: Path, mode: int, folder_mode: int, trusted: bool) -> None:
    program = tmp_path / "bin/bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(mode)
    program.parent.chmod(folder_mode)

    assert is_trustworthy(str(program)) is (trusted and os.geteuid() == 0)
    assert is_trustworthy(str(program.parent)) is False
    assert is_trustworthy(f"{program}/missing") is False


# --- the start of a command ----------------------------------------------------------------------


class NeverStarts:
    """A starter that only records its arguments."""

    def __init__(self) -> None:
        self.starts: list[LaunchSpec] = []

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        self.starts.append(start)
        raise SandboxUnavailable("it was never meant to run")

    async def close(self) -> None:
        return


def command(*argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> Command:
    env = {"PATH": "/usr/bin:/bin"} if env is None else env
    return Command(argv=argv, cwd=cwd, env=env, timeout_seconds=3.0, files=(b"a", b"b"))


async def test_variables_of_the_command_are_not_passed_to_the_launcher() -> None:
    starter = NeverStarts()
    mechanism = Bubblewrap(
        starter,
        ProtectedFiles(),
        launcher="/usr/bin/bwrap",
        has_proc=True,
        has_size_option=True,
    )
    given = command("sh", "-c", "true", env={"PATH": "/bin", "LD_PRELOAD": "/w/evil.so"})

    with pytest.raises(SandboxUnavailable):
        await mechanism.run(given, sandbox_policy(), output=lambda stream, data: None)

    [start] = starter.starts
    words = arguments(ResolvedPolicy(), cwd="/", env=given.env, network=False, has_proc=True, has_size_option=True)
    assert start == LaunchSpec(
        argv=(
            *("/usr/bin/bwrap", "--args", "5", "--seccomp", "6", "--json-status-fd", "7", "--block-fd", "8", "--"),
            *("sh", "-c", "true"),
        ),
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        files=(
            b"a",
            b"b",
            b"".join(word.encode() + b"\0" for word in words),
            program(os.uname().machine, writable=False, network=False, unix_sockets=False, namespaces=True),
        ),
        reports=True,
        mounts=(
            Mount(place="/", source="/", writable=False),
            Mount(place="/dev", source=None, writable=False),
            Mount(place="/dev/shm", source=None, writable=True),
            Mount(place="/proc", source=None, writable=False),
        ),
        max_processes=512,
        timeout_seconds=3.0,
    )


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        (command(), "command args are empty"),
        (command("true", env={"A=B": ""}), "'A=B' cannot be the name of a variable"),
        (command("true", env={"": ""}), "'' cannot be the name of a variable"),
        (command("true", env={"A": "x\0--bind\0/\0/"}), "the variable 'A' contains a NUL character"),
        (command("true", env={"A": "\ud800"}), "the variable 'A' contains a character that cannot be encoded"),
        (command("true", cwd="/\0--bind"), "the working directory contains a NUL character"),
        (command(""), "No such file or directory (os error 2)"),
        (command("no-such-program"), "No such file or directory (os error 2)"),
        (command("sh", env={"PATH": "/nowhere:relative"}), "No such file or directory (os error 2)"),
        (command("/nowhere/sh"), "No such file or directory (os error 2)"),
        (command("./sh", cwd="/nowhere"), "No such file or directory (os error 2)"),
        (command("/etc/passwd"), "Permission denied (os error 13)"),
        (command("/etc"), "Permission denied (os error 13)"),
        (command("true", *["x"] * 9000), "Argument list too long (os error 7)"),
        (command("true", "x" * 131_072), "Argument list too long (os error 7)"),
        (command("true", env=dict.fromkeys(map(str, range(3000)), "x")), "Argument list too long (os error 7)"),
        (command("true", env={"A": "x" * 131_072}), "Argument list too long (os error 7)"),
        (
            command("true", env=dict.fromkeys(map(str, range(64)), "x" * 100_000)),
            "Argument list too long (os error 7)",
        ),
    ],
)
async def test_an_invalid_command_is_refused_before_the_launcher_starts(given: Command, detail: str) -> None:
    starter = NeverStarts()
    mechanism = Bubblewrap(
        starter, ProtectedFiles(), launcher="/usr/bin/bwrap", has_proc=True, has_size_option=True
    )

    with pytest.raises(CommandNotStarted) as refused:
        await mechanism.run(given, sandbox_policy(), output=lambda stream, data: None)

    assert (refused.value.detail, starter.starts) == (detail, [])


async def test_a_program_is_not_read_before_it_is_started(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"neither ELF nor a script")
    program.chmod(0o755)
    starter = NeverStarts()
    mechanism = Bubblewrap(
        starter, ProtectedFiles(), launcher="/usr/bin/bwrap", has_proc=True, has_size_option=True
    )

    with pytest.raises(SandboxUnavailable):  # this starter raises it for every command
        await mechanism.run(command(str(program)), sandbox_policy(), output=lambda stream, data: None)

    [start] = starter.starts
    assert start.argv[-1] == str(program)
