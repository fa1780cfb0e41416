from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.config.types import Inherit, ShellEnvironment
from parley.tools.commands.environment import CORE, SAFE, command_environment, with_restricted_git

SERVER: Final = {
    "HOME": "/home/ada",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "JAVA_HOME": "/opt/java",
    "EDITOR": "ed",
    "https_proxy": "http://proxy:3128",
    "OPENAI_API_KEY": "one",
    "PGPASSWORD": "two",
    "SENTRY_DSN": "three",
    "SSH_AUTH_SOCK": "/run/agent",
    "LD_PRELOAD": "evil.so",
    "GIT_SSH_COMMAND": "evil",
    "PYTHONPATH": "/evil",
    "BASH_FUNC_ls%%": "() { evil; }",
}


def given_to_commands(
    policy: ShellEnvironment, environ: Mapping[str, str] = SERVER, *, network: bool = True
) -> list[str]:
    return sorted(command_environment(environ, policy, network=network))


@pytest.mark.parametrize(
    ("inherit", "names"),
    [
        ("safe", ["HOME", "JAVA_HOME", "LANG", "PATH", "TERM", "https_proxy"]),
        ("all", ["EDITOR", "HOME", "JAVA_HOME", "LANG", "PATH", "TERM", "https_proxy"]),
        ("core", ["HOME", "PATH"]),
        ("none", []),
    ],
)
def test_the_initial_environment_of_a_command(inherit: Inherit, names: list[str]) -> None:
    assert given_to_commands(ShellEnvironment(inherit=inherit)) == names


def test_values_are_passed_as_they_are() -> None:
    environ = {"HOME": "/home/ \udcff=x", "PATH": ""}

    assert command_environment(environ, ShellEnvironment(), network=True) == environ


def test_secrets_pass_if_the_user_allows_it_and_loader_variables_do_not() -> None:
    policy = ShellEnvironment(inherit="all", ignore_default_excludes=True)

    assert given_to_commands(policy) == [
        "EDITOR",
        "HOME",
        "JAVA_HOME",
        "LANG",
        "OPENAI_API_KEY",
        "PATH",
        "PGPASSWORD",
        "SENTRY_DSN",
        "SSH_AUTH_SOCK",
        "TERM",
        "https_proxy",
    ]


@pytest.mark.parametrize("inherit", ["safe", "all"])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("value", ["http://ada:secret@proxy:3128", "ada:secret@proxy", "http://@proxy", "//a@[::1"])
def test_a_proxy_with_a_password_does_not_pass(inherit: Inherit, name: str, value: str) -> None:
    policy = ShellEnvironment(inherit=inherit)

    assert command_environment({name: value, "HOME": "/a@b"}, policy, network=True) == {"HOME": "/a@b"}


def test_a_proxy_with_a_password_passes_when_secrets_do() -> None:
    environ = {"HTTPS_PROXY": "http://ada:secret@proxy:3128"}

    assert command_environment(environ, ShellEnvironment(ignore_default_excludes=True), network=True) == environ


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "github_token",
        "MYSQL_PWD",
        "DB_PASS",
        "DOCKER_AUTH_CONFIG",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "DATABASE_URL",
        "MONGODB_URI",
        "REDIS_URL",
        "SESSION_COOKIE",
        "AZURE_STORAGE_CONNECTION_STRING",
        "GH_PAT",
        "SLACK_WEBHOOK",
        "KRB5CCNAME",
    ],
)
def test_names_of_secrets_do_not_pass(name: str) -> None:
    assert given_to_commands(ShellEnvironment(inherit="all"), {name: "x", "PWD": "/", "PATHS": "y"}) == [
        "PATHS",
        "PWD",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "BASH_ENV",
        "ENV",
        "SHELLOPTS",
        "BASH_FUNC_ls%%",
        "PS4",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GIT_DIR",
        "RIPGREP_CONFIG_PATH",
        "PAGER",
        "LESSOPEN",
        "NODE_OPTIONS",
        "PYTHONSTARTUP",
        "PERL5OPT",
    ],
)
def test_variables_that_make_programs_run_something_pass_only_when_they_are_set(name: str) -> None:
    everything = ShellEnvironment(inherit="all", ignore_default_excludes=True)
    its_own_word = ShellEnvironment(inherit="all", set={name: "mine"})

    assert command_environment({name: "x"}, everything, network=True) == {}
    assert command_environment({name: "x"}, its_own_word, network=True) == {name: "mine"}


def test_excludes_come_before_what_is_set_and_only_includes_after_it() -> None:
    policy = ShellEnvironment(
        inherit="all",
        exclude=("h*", "T?RM"),
        set={"HOME": "/other", "NEW": "1"},
        include_only=("*O*E", "TERM", "PATH"),
    )

    assert command_environment(SERVER, policy, network=True) == {
        "HOME": "/other",
        "JAVA_HOME": "/opt/java",
        "PATH": "/usr/bin:/bin",
    }


def test_variables_of_the_user_pass_although_they_look_like_secrets() -> None:
    policy = ShellEnvironment(inherit="none", set={"API_TOKEN": "x"})

    assert command_environment(SERVER, policy, network=True) == {"API_TOKEN": "x"}


@pytest.mark.parametrize("policy", [ShellEnvironment(inherit="none"), ShellEnvironment(include_only=("NOTHING",))])
def test_commands_without_network_have_a_variable_that_says_so_under_every_policy(policy: ShellEnvironment) -> None:
    assert command_environment(SERVER, policy, network=False) == {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}


def test_brackets_and_dots_in_patterns_stand_for_themselves() -> None:
    policy = ShellEnvironment(inherit="all", exclude=("A[BC]", "D.F"))

    assert given_to_commands(policy, {"AB": "", "A[BC]": "", "DEF": "", "D.F": ""}) == ["AB", "DEF"]


def test_no_safe_name_is_hidden_again() -> None:
    names = {name for group in SAFE.values() for name in group}
    environ = dict.fromkeys(names, "x")

    assert names >= set(CORE)
    assert command_environment(environ, ShellEnvironment(), network=True) == environ


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name, computed in the simplest way."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(matches(name[start:], pattern[1:]) for start in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and matches(name[1:], pattern[1:])


@settings(deadline=None)
@given(name=st.text("AB", min_size=1, max_size=8), pattern=st.text("AB*?", max_size=8))
def test_a_pattern_means_what_it_says(name: str, pattern: str) -> None:
    left = command_environment({name: ""}, ShellEnvironment(inherit="all", exclude=(pattern,)), network=True)

    assert left == ({} if matches(name, pattern) else {name: ""})


def test_a_pattern_full_of_stars_takes_no_longer_than_others() -> None:
    policy = ShellEnvironment(inherit="all", exclude=("*A" * 1000 + "B",))
    environ = {"A" * 100_000: ""}

    assert command_environment(environ, policy, network=True) == environ


def test_a_tame_git_obeys_no_repository_nor_what_the_user_has_set() -> None:
    env = with_restricted_git({"PATH": "/bin", "PAGER": "evil", "GIT_CONFIG_COUNT": "9"})

    settings_of_git = {
        env[f"GIT_CONFIG_KEY_{place}"]: env[f"GIT_CONFIG_VALUE_{place}"]
        for place in range(int(env["GIT_CONFIG_COUNT"]))
    }
    assert settings_of_git == {
        "core.fsmonitor": "false",
        "core.hooksPath": "/dev/null",
        "core.pager": "cat",
        "gpg.openpgp.program": "/bin/false",
        "gpg.program": "/bin/false",
        "gpg.ssh.program": "/bin/false",
        "gpg.x509.program": "/bin/false",
        "log.showSignature": "false",
        "safe.bareRepository": "explicit",
    }
    assert {name: value for name, value in env.items() if not name.startswith("GIT_CONFIG_")} == {
        "PATH": "/bin",
        "PAGER": "cat",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
    }
