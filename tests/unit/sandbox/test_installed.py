"""The explanation for commands that cannot write where Parley is installed, and refused working directories."""

from __future__ import annotations

import pytest

from parley.errors import SandboxUnavailable
from parley.ports.commands import CommandResult
from parley.sandbox.installed import Denials, refuse_installed
from parley.sandbox.resolved_policy import ResolvedPolicy

WHY = "/project/.venv: Parley itself is installed here, so it is read-only for commands"
INSTALLED = ResolvedPolicy(roots=("/project",), installed=("/project/.venv",))
FAILED = CommandResult(exit_code=1, seconds=0.1)


def explained(
    *said: bytes, policy: ResolvedPolicy = INSTALLED, ended: CommandResult = FAILED
) -> tuple[bytes, tuple[str, ...]]:
    """Return the output of a command that writes this output, and the remarks in its result."""
    passed = bytearray()
    denials = Denials(lambda _, data: passed.extend(data))
    denials.begin(policy)
    for data in said:
        denials("stderr", data)
    remarks = denials.explained(ended).remarks
    return bytes(passed), remarks


@pytest.mark.parametrize(
    "said", [(b"x: Read-only file system\n",), (b"EROFS: read-only f", b"ile system\n"), (b"EROFS\n",)]
)
def test_the_output_of_a_command_that_could_not_write_says_where_parley_is_installed(
    said: tuple[bytes, ...],
) -> None:
    assert explained(*said) == (b"".join(said) + f"{WHY}\n".encode(), (WHY,))


@pytest.mark.parametrize(
    ("said", "policy", "ended"),
    [
        (b"no such file\n", INSTALLED, FAILED),
        (b"Read-only file system\n", INSTALLED, CommandResult(exit_code=0, seconds=0.1)),
        (b"Permission denied\n", INSTALLED, FAILED),
        (b"Read-only file system\n", ResolvedPolicy(roots=("/project",)), FAILED),
    ],
    ids=["another failure", "success", "another refusal", "nothing installed there"],
)
def test_the_output_of_any_other_command_says_nothing_about_it(
    said: bytes, policy: ResolvedPolicy, ended: CommandResult
) -> None:
    assert explained(said, policy=policy, ended=ended) == (said, ())


def test_a_command_works_in_the_roots_that_are_left_and_in_no_other() -> None:
    policy = ResolvedPolicy(roots=("/project/inner", "/other"), refused=("/project",))

    for cwd in ("/project/inner/deep", "/other", "/elsewhere", "/a\0b"):
        refuse_installed(policy, cwd)
    with pytest.raises(
        SandboxUnavailable, match="commands cannot write to /project: Parley itself is installed there"
    ):
        refuse_installed(policy, "/project/src")
