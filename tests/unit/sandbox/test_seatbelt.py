"""The profile for macOS. The tests interpret its text and do not run it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.sandbox.seatbelt import Profile, Seatbelt, profile, words

Form = str | list["Form"]
"""A word, or a list of forms in parentheses. Strings keep their quotes."""

TOKEN = re.compile(r'\s*(?:(#?"[^"]*")|([()])|([^\s()"]+))')


def forms(text: str) -> list[Form]:
    """Parse the text. Fail if parentheses or quotes are unbalanced."""
    stack: list[list[Form]] = [[]]
    position = 0
    while position < len(text.rstrip()):
        found = TOKEN.match(text, position)
        assert found, f"not understood: {text[position : position + 40]!r}"
        position = found.end()
        match found[0].strip():
            case "(":
                stack.append([])
            case ")":
                done = stack.pop()
                stack[-1].append(done)
            case token:
                stack[-1].append(token)
    assert len(stack) == 1, "a parenthesis is not closed"
    return stack[0]


def all_words(form: Form) -> Iterator[str]:
    if isinstance(form, str):
        yield form
    else:
        for part in form:
            yield from all_words(part)


class ProfileInterpreter:
    """An interpreter that decides about files as Seatbelt does: the last matching rule of the profile counts."""

    def __init__(self, chosen: Profile) -> None:
        version, default, *self.rules = forms(chosen.text)
        assert [version, default] == [["version", "1"], ["deny", "default"]]
        self.parameters = chosen.parameters

    def allows(self, operation: str, path: str) -> bool:
        verdicts = [rule[0] == "allow" for rule in self.rules if self.applies(rule, operation, path)]
        return bool(verdicts) and verdicts[-1]

    def all_verdicts(self, operation: str, path: str) -> set[str]:
        return {str(rule[0]) for rule in self.rules if self.applies(rule, operation, path)}

    def applies(self, rule: Form, operation: str, path: str) -> bool:
        operations = [word for word in rule if isinstance(word, str)][1:]
        filters = [part for part in rule if isinstance(part, list)]
        if not any(fnmatchcase(operation, pattern) for pattern in operations):
            return False
        return not filters or any(self.holds(part, path) for part in filters)

    def holds(self, condition: Form, path: str) -> bool:
        assert isinstance(condition, list)
        kind, *arguments = condition
        match kind:
            case "require-all":
                return all(self.holds(part, path) for part in arguments)
            case "require-not":
                return not self.holds(arguments[0], path)
            case "literal":
                return path == self.value(arguments[0])
            case "subpath":
                folder = self.value(arguments[0])
                return path == folder or path.startswith(folder.rstrip("/") + "/")
            case "regex":
                return re.search(self.value(arguments[0]), path) is not None
            case _:
                return False

    def value(self, form: Form) -> str:
        if isinstance(form, list):
            assert form[0] == "param"
            return self.parameters[str(form[1]).strip('"')]
        return form.removeprefix("#").strip('"')


def made(policy: ResolvedPolicy, *, network: bool = False, unix_sockets: bool = False) -> Profile:
    return profile(policy, network=network, unix_sockets=unix_sockets)


HOME = "/Users/me"
PROJECT = "/Users/me/code/project"

PLACES = ResolvedPolicy(
    roots=("/private/tmp", PROJECT, "/private/tmp/deep/down/repo"),
    git_directories=(f"{PROJECT}/.git", "/private/tmp/deep/down/repo/.git"),
    protected=(f"{PROJECT}/.codex",),
    missing_git=("/private/tmp/.git",),
    hidden_directories=(f"{HOME}/.ssh", f"{PROJECT}/secrets"),
    hidden_files=(f"{HOME}/.netrc",),
)

WRITES = ("file-write-data", "file-write-create", "file-write-unlink", "file-write-mode", "file-write-xattr")


# --- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"{PROJECT}/main.py",
        f"{PROJECT}/a/b/c",
        f"{PROJECT}/.gitignore",
        f"{PROJECT}/.github/workflow",
        f"{PROJECT}/legit",
        f"{PROJECT}/digit/.gitx",
        f"{PROJECT}/vendor/other/.git/config",
        "/private/tmp/x",
        "/private/tmp/deep/down/repo/file",
        "/dev/ptmx",
    ],
)
def test_paths_in_a_root_are_writable(path: str) -> None:
    played = ProfileInterpreter(made(PLACES))

    assert {operation: played.allows(operation, path) for operation in WRITES} == dict.fromkeys(WRITES, True)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        f"{HOME}/.zshrc",
        f"{PROJECT}x/file",
        "/Users/me/code",
        f"{PROJECT}/.git",
        f"{PROJECT}/.GIT",
        f"{PROJECT}/.Git/hooks/pre-commit",
        f"{PROJECT}/.git/config",
        f"{PROJECT}/.codex/config.toml",
        f"{PROJECT}/.CODEX",
        f"{PROJECT}/.claude",
        f"{PROJECT}/.parley/x",
        f"{PROJECT}/secrets/key",
        f"{PROJECT}/SECRETS",
        "/private/tmp/.git",
        "/private/tmp/.giT/config",
        "/private/tmp/deep/down/repo/.git/hooks/x",
        "/private/TMP/deep/down/repo/.git",
        f"{HOME}/.ssh/authorized_keys",
        "/dev/ttys003",
        "/dev/disk0",
    ],
)
def test_paths_outside_and_protected_paths_are_not_writable(path: str) -> None:
    played = ProfileInterpreter(made(PLACES))

    assert {operation: played.allows(operation, path) for operation in WRITES} == dict.fromkeys(WRITES, False)


@pytest.mark.parametrize(
    "folder",
    ["/private/tmp", PROJECT, "/private/tmp/deep", "/private/tmp/deep/down", "/private/tmp/deep/down/repo"],
)
def test_a_root_and_the_way_to_what_is_protected_cannot_be_moved_or_removed(folder: str) -> None:
    played = ProfileInterpreter(made(PLACES))

    assert played.allows("file-write-mode", folder)
    assert not played.allows("file-write-unlink", folder)


def test_everything_may_be_read_but_what_is_hidden_and_the_terminals_of_others() -> None:
    played = ProfileInterpreter(made(PLACES))
    readable = ("/", "/etc/passwd", HOME, f"{HOME}/.zshrc", f"{HOME}/.sshx", f"{PROJECT}/.git/config", "/dev/null")
    hidden = (
        *(f"{HOME}/.ssh", f"{HOME}/.ssh/id_ed25519", f"{HOME}/.SSH/id_ed25519", f"{HOME}/.netrc", f"{HOME}/.NetRC"),
        *(f"{PROJECT}/secrets", f"{PROJECT}/secrets/key", "/dev/ttys001"),
    )

    assert [path for path in readable if not played.allows("file-read-data", path)] == []
    assert [path for path in hidden if played.allows("file-read-data", path)] == []


def test_a_root_within_what_is_hidden_can_be_read_and_written() -> None:
    policy = ResolvedPolicy(roots=("/h/.x/root",), hidden_directories=("/h/.x", "/h/.x/root/inner"))
    played = ProfileInterpreter(made(policy))

    decided = {
        path: (played.allows("file-read-data", path), played.allows("file-write-data", path))
        for path in ("/h/a", "/h/.x/a", "/h/.x/root/a", "/h/.x/root/inner/a")
    }

    assert decided == {
        "/h/a": (True, False),
        "/h/.x/a": (False, False),
        "/h/.x/root/a": (True, True),
        "/h/.x/root/inner/a": (False, False),
    }


def test_a_git_folder_that_is_a_root_itself_may_be_written() -> None:
    played = ProfileInterpreter(made(ResolvedPolicy(roots=("/w", "/w/.git"))))

    assert played.allows("file-write-data", "/w/.git/config")
    assert not played.allows("file-write-unlink", "/w/.git")


def test_without_roots_nothing_of_the_disk_may_be_written() -> None:
    played = ProfileInterpreter(made(ResolvedPolicy()))
    writable = [path for path in ("/", "/private/tmp/x", HOME, PROJECT) if played.allows("file-write-data", path)]

    assert writable == []
    assert made(ResolvedPolicy()).parameters == {}


def test_no_decision_but_about_moving_hangs_on_the_order_of_the_rules() -> None:
    played = ProfileInterpreter(made(PLACES))
    paths = (PROJECT, f"{PROJECT}/.git", f"{PROJECT}/x", f"{HOME}/.ssh", "/private/tmp/.git/x", "/etc")

    contested = {
        (operation, path)
        for operation in (*WRITES, "file-read-data")
        for path in paths
        if len(played.all_verdicts(operation, path)) > 1
    }

    assert contested == {("file-write-unlink", PROJECT)}


# --- the network -------------------------------------------------------------------------


def network_rules(chosen: Profile) -> set[str]:
    return {" ".join(all_words(rule)) for rule in forms(chosen.text) if "network" in " ".join(all_words(rule))}


NAMES_OF_COMPUTERS = 'allow network-outbound literal "/private/var/run/mDNSResponder"'
INTERNET = {
    'allow network-outbound remote ip "*:*"',
    'allow network-inbound local ip "*:*"',
    'allow network-bind local ip "*:*"',
    NAMES_OF_COMPUTERS,
}
UNIX_SOCKETS = {
    "allow network-outbound remote unix-socket",
    "allow network-inbound local unix-socket",
    "allow network-bind local unix-socket",
}


@pytest.mark.parametrize(("network", "unix_sockets"), list(itertools.product((False, True), repeat=2)))
def test_the_network_and_named_sockets_are_allowed_apart(network: bool, unix_sockets: bool) -> None:
    expected = (INTERNET if network else set()) | (UNIX_SOCKETS if unix_sockets else set())

    assert network_rules(made(PLACES, network=network, unix_sockets=unix_sockets)) == expected


def test_other_processes_are_reached_only_within_the_same_sandbox() -> None:
    rules = [" ".join(all_words(rule)) for rule in forms(made(PLACES, network=True, unix_sockets=True).text)]
    reaching = ("signal", "process-info", "mach-priv", "mach-register", "ipc-posix-shm", "ipc-sysv", "procargs")

    found = [rule for rule in rules if any(word in rule for word in reaching)]

    assert found == ["allow process-info* target same-sandbox", "allow signal target same-sandbox"]


# --- names -------------------------------------------------------------------------------

ODD_NAMES = (
    'a"b',
    "a)b",
    '") (allow default) ("',
    "a\\b",
    "a=b",
    "-Dx=y",
    "new\nline",
    "tab\t",
    "näme",
    "[a-z]*",
    "(x|y)$",
    "^a",
    "a]b",
    "#|x|#",
    ";comment",
    "\udcff",
    "$HOME",
    "'",
    " ",
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_becomes_part_of_the_text_and_its_git_folder_is_protected_all_the_same(name: str) -> None:
    root = f"/w/{name}"
    plain = made(ResolvedPolicy(roots=("/w/plain",), missing_git=("/w/plain/.git",), hidden_files=("/h/plain",)))

    odd = made(ResolvedPolicy(roots=(root,), missing_git=(f"{root}/.git",), hidden_files=(f"/h/{name}",)))

    played = ProfileInterpreter(odd)
    assert odd.text == plain.text
    assert played.allows("file-write-create", f"{root}/file")
    assert not played.allows("file-write-create", f"{root}/.git")
    assert not played.allows("file-write-create", f"{root}/.GIT/config")
    assert not played.allows("file-read-data", f"/h/{name}")


names = st.text(st.characters(blacklist_characters="/\0"), min_size=1, max_size=8)
paths = (
    st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4)
    .map("/".join)
    .map("/{}".format)
)


@given(roots=st.lists(paths, min_size=1, max_size=3, unique=True), hidden=st.lists(paths, max_size=2, unique=True))
def test_any_places_make_a_text_that_closes_and_names_each_of_its_parameters(
    roots: list[str], hidden: list[str]
) -> None:
    policy = ResolvedPolicy(
        roots=tuple(roots), hidden_directories=tuple(path for path in hidden if path not in roots)
    )

    chosen = made(policy, network=True, unix_sockets=True)

    plain = made(ResolvedPolicy(roots=("/x",)), network=True, unix_sockets=True)
    named = {word.strip('"') for word in all_words(forms(chosen.text)) if re.fullmatch(r'"[A-Z]+_[0-9]+"', word)}
    assert named == set(chosen.parameters)
    assert set(chosen.text) <= set(plain.text) | set("0123456789")
    played = ProfileInterpreter(chosen)
    for root in roots:
        assert not played.allows("file-write-unlink", root)
        if f"{root}/.git" not in roots:
            assert not played.allows("file-write-create", f"{root}/.git")


# --- the start of a command ----------------------------------------------------------------------


def test_the_launcher_is_given_the_text_then_each_parameter_and_then_the_command() -> None:
    chosen = Profile(text="(version 1)", parameters={"PATH_0": "/a b=c", "PATH_1": "-x"})

    assert words(chosen, ("git", "-p", "--", "x")) == (
        "/usr/bin/sandbox-exec",
        "-p",
        "(version 1)",
        "-DPATH_0=/a b=c",
        "-DPATH_1=-x",
        "--",
        "git",
        "-p",
        "--",
        "x",
    )


class Noted:
    """A starter that only records its arguments."""

    def __init__(self) -> None:
        self.starts: list[LaunchSpec] = []

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        self.starts.append(start)
        return CommandResult(exit_code=7, seconds=0.0)

    async def close(self) -> None:
        pass


async def test_a_command_is_started_by_the_launcher_with_its_own_directory_and_variables() -> None:
    starter = Noted()
    command = Command(
        argv=("make", "all"), cwd="/", env={"A": "b"}, timeout_seconds=5.0, policy=SandboxPolicy(), files=(b"x",)
    )

    ended = await Seatbelt(starter).run(command, SandboxPolicy(network=True), output=lambda *_: None)

    argv = words(made(ResolvedPolicy(), network=True), ("make", "all"))
    assert ended == CommandResult(exit_code=7, seconds=0.0)
    assert starter.starts == [LaunchSpec(argv=argv, cwd="/", env={"A": "b"}, files=(b"x",), timeout_seconds=5.0)]
