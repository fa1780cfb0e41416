"""Summaries of commands for display: first the cases of the original server, then Parley's own cases."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.tools.parsed_commands import MAX_SCRIPT, parse


def shown(*argv: str) -> Any:
    """Return the summaries as a client reads them."""
    return msgspec.json.decode(msgspec.json.encode(parse(argv)))


def read(command: str, name: str) -> Any:
    return {"Read": {"cmd": shlex.split(command), "name": name}}


def list_files(command: str, path: str | None = None) -> Any:
    return {"ListFiles": {"cmd": shlex.split(command), "path": path}}


def search(command: str, query: str | None, path: str | None = None) -> Any:
    return {"Search": {"cmd": shlex.split(command), "query": query, "path": path}}


def format_(command: str, tool: str, *targets: str) -> Any:
    return {"Format": {"cmd": shlex.split(command), "tool": tool, "targets": list(targets) or None}}


def lint(command: str, tool: str, *targets: str) -> Any:
    return {"Lint": {"cmd": shlex.split(command), "tool": tool, "targets": list(targets) or None}}


def run_tests(command: str) -> Any:
    return {"Test": {"cmd": shlex.split(command)}}


def unknown(*words: str) -> Any:
    return {"Unknown": {"cmd": list(words)}}


RECORDED: list[tuple[list[str], list[Any]]] = [
    (["cat", "README.md"], [read("cat README.md", "README.md")]),
    (["bash", "-lc", "ls -la src"], [list_files("ls -la src", "src")]),
    (
        ["bash", "-lc", "rg -n foo src | head -n 5"],
        [search("rg -n foo src", "foo", "src"), unknown("head", "-n", "5")],
    ),
    (["bash", "-lc", "sed -n '1,20p' a.txt"], [read("sed -n 1,20p a.txt", "a.txt")]),
    (["bash", "-lc", "cargo test && pytest -q"], [run_tests("cargo test"), run_tests("pytest -q")]),
    (["bash", "-lc", "cargo fmt -- --check"], [format_("cargo fmt -- --check", "cargo fmt")]),
    (["bash", "-lc", "npx eslint ."], [lint("npx eslint .", "eslint", ".")]),
    (["git", "status"], [unknown("git", "status")]),
    (["bash", "-lc", "cd sub && grep -R x ."], [unknown("cd", "sub"), search("grep -R x .", "x", ".")]),
    (["bash", "-lc", "echo $(date)"], [unknown("echo", "$(date)")]),
    (["find", ".", "-name", "*.rs"], [search("find . -name '*.rs'", "*.rs", ".")]),
    (["bash", "-lc", "cat a | wc -l"], [read("cat a", "a")]),
    (["bash", "-lc", "true"], []),
    (["rg", "--files"], [search("rg --files", None)]),
    (["head", "-n", "3", "f.py"], [read("head -n 3 f.py", "f.py")]),
    # Other cases from the recorded traffic:
    ([], [unknown()]),
    (["false"], [unknown("false")]),
    (["ls"], [list_files("ls")]),
    (["git", "init", "--quiet", "repo dir"], [unknown("git", "init", "--quiet", "repo dir")]),
    (["python3", "-c", "print('x'*10239)"], [unknown("python3", "-c", "print('x'*10239)")]),
    (["bash", "-lc", "apply_patch"], [unknown("apply_patch")]),
    (
        ["bash", "-lc", "ls && cat f | head -n 1"],
        [list_files("ls"), read("cat f", "f"), unknown("head", "-n", "1")],
    ),
    (
        ["bash", "-lc", "echo out; echo err >&2; exit 3"],
        [unknown("echo", "out;", "echo", "err", ">&2;", "exit", "3")],
    ),
    (["bash", "-c", "sleep 1; echo late"], [unknown("sleep", "1;", "echo", "late")]),
    (["bash", "-c", "echo x > a"], [unknown("echo", "x", ">", "a")]),
    (
        ["bash", "-c", "(sleep 1.5; touch survived) & wait"],
        [unknown("(sleep", "1.5;", "touch", "survived)", "&", "wait")],
    ),
    (
        ["bash", "-c", "cat; env | grep -E 'KEY|TOKEN' | grep -v HOME | sort; echo done"],
        [
            unknown("cat;", "env"),
            search("grep -E 'KEY|TOKEN'", "KEY|TOKEN"),
            search("grep -v HOME", "HOME"),
            unknown("sort;", "echo", "done"),
        ],
    ),
]


@pytest.mark.parametrize(("argv", "summaries"), RECORDED, ids=[shlex.join(argv) for argv, _ in RECORDED])
def test_a_command_is_shown_as_the_original_showed_it(argv: list[str], summaries: list[Any]) -> None:
    assert shown(*argv) == summaries


@pytest.mark.parametrize(
    ("command", "summary"),
    [
        ("tail -n +10 logs/app.log", read("tail -n +10 logs/app.log", "app.log")),
        ("head -5 f", read("head -5 f", "f")),
        ("nl -ba src/app.py", read("nl -ba src/app.py", "app.py")),
        ("cat -- -odd", read("cat -- -odd", "-odd")),
        ("cat a b", unknown("cat", "a", "b")),
        ("cat -", unknown("cat", "-")),
        ("sed -n 5p f", read("sed -n 5p f", "f")),
        ("sed -n 's/a/b/w out' f", unknown("sed", "-n", "s/a/b/w out", "f")),
        ("sed -i s/a/b/ f", unknown("sed", "-i", "s/a/b/", "f")),
        ("ls -I '*.o' lib/", list_files("ls -I '*.o' lib/", "lib")),
        ("tree -L 2", list_files("tree -L 2")),
        ("git ls-files docs", list_files("git ls-files docs", "docs")),
        ("find src -type f", list_files("find src -type f", "src")),
        ("find . -name x -delete", unknown("find", ".", "-name", "x", "-delete")),
        ("find . -exec rm {} +", unknown("find", ".", "-exec", "rm", "{}", "+")),
        ("rg --files -g '*.py' lib", search("rg --files -g '*.py' lib", None, "lib")),
        ("rg -e a -e b lib", search("rg -e a -e b lib", "a", "lib")),
        ("rg -C 3 'two words'", search("rg -C 3 'two words'", "two words")),
        ("grep -rE x lib", search("grep -rE x lib", "x", "lib")),
        ("grep --include '*.c' -r x", search("grep --include '*.c' -r x", "x")),
        ("git grep -n x", search("git grep -n x", "x")),
        ("fd app lib", search("fd app lib", "app", "lib")),
        ("fd -e py", list_files("fd -e py")),
        ("ruff format src tests", format_("ruff format src tests", "ruff format", "src", "tests")),
        ("uvx ruff check --select E .", lint("uvx ruff check --select E .", "ruff check", ".")),
        ("uv run python -m pytest -q", run_tests("uv run python -m pytest -q")),
        ("npm run test", run_tests("npm run test")),
        ("go test ./...", run_tests("go test ./...")),
        ("cargo build", unknown("cargo", "build")),
        ("npx", unknown("npx")),
        ("wc -l f", unknown("wc", "-l", "f")),
        ("head", unknown("head")),
        ("bash", unknown("bash")),
        ("bash -lc ls -la", unknown("bash", "-lc", "ls", "-la")),
        ("ls | wc", list_files("ls | wc", "|")),
    ],
)
def test_a_single_command_is_shown_as_what_its_program_usually_does(command: str, summary: Any) -> None:
    assert shown(*shlex.split(command)) == [summary]


@pytest.mark.parametrize(
    ("script", "summaries"),
    [
        ("cat f || true", [read("cat f", "f")]),
        ("sort f | uniq", [unknown("sort", "f", "|", "uniq")]),
        ("ls | head -5", [list_files("ls")]),
        ("cat f | sed -n 1,5p", [read("cat f", "f")]),
        ("ls;", [list_files("ls")]),
        ("\nls &&\n  pwd\n\n", [list_files("ls"), unknown("pwd")]),
        ("cat 'a b'\"c\"", [read("cat 'a bc'", "a bc")]),
        ("", [unknown()]),
        ("   ", [unknown()]),
        ("ls; ; pwd", [unknown("ls;", ";", "pwd")]),
        ("ls &&", [unknown("ls", "&&")]),
        ("| wc", [unknown("|", "wc")]),
        ("cat f > g", [unknown("cat", "f", ">", "g")]),
        ("cat f &", [unknown("cat", "f", "&")]),
        ("cat *.py", [unknown("cat", "*.py")]),
        ("A=1 cat f && ls", [unknown("A=1", "cat", "f", "&&", "ls")]),
        ("cat =f && ls", [unknown("cat", "=f", "&&", "ls")]),
        ("cat 'a\x1bb'", [unknown("cat", "a\x1bb")]),
        ("ls # all", [unknown("ls", "#", "all")]),
        ('cat "$HOME/f"', [unknown("cat", "$HOME/f")]),
        ("cat a\\ b", [unknown("cat", "a b")]),
        ("ca\\\nt f", [unknown("cat", "f")]),
        ("ls\rpwd", [unknown("ls\rpwd")]),
        ("for i in a b; do cat f; done", [unknown("for", "i", "in", "a", "b;", "do", "cat", "f;", "done")]),
        ("echo it's", [unknown("echo", "it's")]),
    ],
)
def test_a_script_is_split_only_where_it_is_plain_words_and_connectors(script: str, summaries: list[Any]) -> None:
    assert shown("bash", "-lc", script) == summaries


def test_a_connector_in_quotes_is_a_word() -> None:
    assert shown("bash", "-c", "grep '|' f | wc -l") == [search("grep '|' f", "|", "f")]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b/c.py", "c.py"),
        ("packages/web/src", "web"),
        ("web/dist/", "web"),
        ("node_modules", "node_modules"),
        ("src/build", "src/build"),
        ("/", "/"),
        (".", "."),
    ],
)
def test_a_path_is_shown_by_the_part_that_tells_most(path: str, name: str) -> None:
    assert shown("ls", path) == [list_files(f"ls {path}", name)]


def test_a_script_too_long_to_be_read_is_shown_as_it_is() -> None:
    for script in ("ls;" * 400_000, "'" * 1_000_000, '"\\' * 500_000):
        assert shown("bash", "-lc", script) == [unknown("bash", "-lc", script)]
    longest = "a" * MAX_SCRIPT
    assert shown("bash", "-lc", longest) == [unknown(longest)]


@pytest.mark.parametrize("begin", [(), ("rg",), ("find",), ("cat",), ("uv", "run"), ("eslint",)])
@pytest.mark.parametrize("word", ["-e", "uv", "run", "npx"])
def test_a_command_of_very_many_words_is_shown_with_all_of_them(begin: tuple[str, ...], word: str) -> None:
    argv = (*begin, *[word] * 100_000)

    (summary,) = shown(*argv)

    assert [shape["cmd"] for shape in summary.values()] == [list(argv)]


words = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8).filter(lambda word: word[:1] != "=")
commands = st.lists(words, max_size=4).map(lambda rest: ["prog", *rest])


@settings(deadline=None)
@given(
    listed=st.lists(commands, min_size=1, max_size=5), connector=st.sampled_from([" && ", "||", "; ", " | ", "\n"])
)
def test_commands_quoted_for_a_shell_come_back_word_by_word(listed: list[list[str]], connector: str) -> None:
    script = connector.join(map(shlex.join, listed))

    assert shown("bash", "-lc", script) == [unknown(*command) for command in listed]


def words_by_the_standard_library(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:
        return script.split()


@settings(deadline=None)
@given(rest=st.text("ab'\"\\ \t", max_size=30))
@example(rest="'a' \"b")
@example(rest="\\")
def test_the_words_of_any_script_are_those_of_the_standard_library(rest: str) -> None:
    script = f"prog > {rest}"

    assert shown("bash", "-lc", script) == [unknown(*words_by_the_standard_library(script))]


@settings(deadline=None)
@given(
    argv=st.lists(st.text(max_size=20), max_size=5),
    script=st.text(max_size=200),
    flag=st.sampled_from(["-lc", "-c"]),
)
def test_nothing_is_too_odd_to_be_shown(argv: list[str], script: str, flag: str) -> None:
    assert isinstance(shown(*argv), list)
    assert isinstance(shown("bash", flag, script), list)
