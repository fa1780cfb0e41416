"""The decision for every policy and sandbox mode, for commands and patches, with and without a sandbox."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from kit.models.raw_provider import settings
from parley.agent.policy import Ask, Decision, decide
from parley.config.types import ApprovalPolicy, Sandbox, SandboxMode, Settings
from parley.ports.commands import SandboxPolicy, WritableRoot
from parley.ports.tools import Action, ApplyPatch, Granted, RejectedByPolicy, RunCommand
from parley.wire.ids import CallId

CWD, OTHER_ROOT = "/project", "/scratch"
HIDDEN = ("/home/user/.parley",)
ROOTS = tuple(WritableRoot(path=path, device=1, inode=inode) for inode, path in enumerate((CWD, OTHER_ROOT)))
WRITABLE = SandboxPolicy(writable=ROOTS, hidden=HIDDEN)
READ_ONLY = SandboxPolicy(hidden=(*HIDDEN, "/nonexistent", "/nonexistent/config.toml", "/nonexistent/auth.json"))
WHY_NOT = "neither bubblewrap nor Landlock works here"
WHY = "the tests need the network"


def chosen(policy: str, mode: str) -> Settings:
    return settings(approval_policy=policy, sandbox_mode=mode, cwd=CWD, sandbox=Sandbox(hidden_paths=HIDDEN))


def policy_of(mode: str) -> SandboxPolicy | None:
    return {"read-only": READ_ONLY, "workspace-write": WRITABLE, "danger-full-access": None}[mode]


def command(*, escalated: bool = False, has_failed: bool = False) -> RunCommand:
    return RunCommand(
        call_id=CallId("call"),
        argv=("make",),
        cwd=CWD,
        escalated=escalated,
        justification=WHY if escalated else None,
        has_failed=has_failed,
    )


def patch(*paths: str, has_failed: bool = False) -> ApplyPatch:
    return ApplyPatch(
        call_id=CallId("call"),
        changes={},
        paths=paths,
        inside_cwd=all(path.startswith(f"{CWD}/") for path in paths),
        has_failed=has_failed,
    )


ACTIONS: dict[str, tuple[Action, bool]] = {
    "command": (command(), False),
    "escalated": (command(escalated=True), False),
    "safe": (command(), True),
    "inside": (patch("/project/a", "/project/b/c"), False),
    "in a root": (patch("/project/a", "/scratch/b"), False),
    "outside": (patch("/project/a", "/projects/b"), False),
}
"""The actions, each with a flag that is True for a safe command."""

WORDS: dict[str, Decision] = {
    "run": Granted(),
    "within": Granted(policy=WRITABLE),
    "within ro": Granted(policy=READ_ONLY),
    "within?": Granted(policy=WRITABLE, ask_again=True),
    "within ro?": Granted(policy=READ_ONLY, ask_again=True),
    "safe": Granted(policy=READ_ONLY, known_safe=True),
    "ask": Ask(leaves_sandbox=True),
    "ask: why": Ask(reason=WHY, leaves_sandbox=True),
    "ask here": Ask(leaves_sandbox=False),
    "ask here: why": Ask(reason=WHY, leaves_sandbox=False),
    "no sandbox": RejectedByPolicy(why=f"no sandbox is available on this system: {WHY_NOT}"),
    "not there": RejectedByPolicy(why="writing outside of the project; rejected by user approval settings"),
}

CONFINED = """
untrusted  | read-only          | ask        | ask: why      | safe       | ask       | ask       | ask
untrusted  | workspace-write    | ask        | ask: why      | safe       | ask       | ask       | ask
untrusted  | danger-full-access | ask here   | ask here: why | safe       | ask here  | ask here  | ask here
on-failure | read-only          | within ro? | within ro?    | safe       | ask       | ask       | ask
on-failure | workspace-write    | within?    | within?       | safe       | within?   | within?   | ask
on-failure | danger-full-access | run        | run           | run        | run       | run       | run
on-request | read-only          | within ro  | ask: why      | safe       | ask       | ask       | ask
on-request | workspace-write    | within     | ask: why      | safe       | within    | ask       | ask
on-request | danger-full-access | run        | run           | run        | run       | ask here  | ask here
never      | read-only          | within ro  | within ro     | safe       | not there | not there | not there
never      | workspace-write    | within     | within        | safe       | within    | not there | not there
never      | danger-full-access | run        | run           | run        | run       | not there | not there
"""

UNCONFINED = """
untrusted  | read-only          | ask        | ask: why      | ask        | ask        | ask        | ask
untrusted  | workspace-write    | ask        | ask: why      | ask        | ask        | ask        | ask
untrusted  | danger-full-access | ask here   | ask here: why | ask here   | ask here   | ask here   | ask here
on-failure | read-only          | no sandbox | no sandbox    | no sandbox | ask        | ask        | ask
on-failure | workspace-write    | no sandbox | no sandbox    | no sandbox | no sandbox | no sandbox | ask
on-failure | danger-full-access | run        | run           | run        | run        | run        | run
on-request | read-only          | no sandbox | ask: why      | no sandbox | ask        | ask        | ask
on-request | workspace-write    | no sandbox | ask: why      | no sandbox | no sandbox | ask        | ask
on-request | danger-full-access | run        | run           | run        | run        | ask here   | ask here
never      | read-only          | no sandbox | no sandbox    | no sandbox | not there  | not there  | not there
never      | workspace-write    | no sandbox | no sandbox    | no sandbox | no sandbox | not there  | not there
never      | danger-full-access | run        | run           | run        | run        | not there  | not there
"""


def cells(table: str) -> list[tuple[str, str, str, str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return [(row[0], row[1], action, word) for row in rows for action, word in zip(ACTIONS, row[2:], strict=True)]


@pytest.mark.parametrize("table", [CONFINED, UNCONFINED], ids=["confined", "unconfined"])
def test_the_tables_have_every_cell(table: str) -> None:
    assert [cell[:3] for cell in cells(table)] == [
        (policy, mode, action)
        for policy in get_args(ApprovalPolicy)
        for mode in get_args(SandboxMode)
        for action in ACTIONS
    ]


@pytest.mark.parametrize(("policy", "mode", "what", "word"), cells(CONFINED))
def test_where_the_system_can_confine(policy: str, mode: str, what: str, word: str) -> None:
    action, safe = ACTIONS[what]

    decided = decide(action, chosen(policy, mode), policy=policy_of(mode), unconfined=None, safe=safe)

    assert decided == WORDS[word]


@pytest.mark.parametrize(("policy", "mode", "what", "word"), cells(UNCONFINED))
def test_where_the_system_cannot_confine(policy: str, mode: str, what: str, word: str) -> None:
    action, safe = ACTIONS[what]

    decided = decide(action, chosen(policy, mode), policy=policy_of(mode), unconfined=WHY_NOT, safe=safe)

    assert decided == WORDS[word]


@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
@pytest.mark.parametrize("action", [command(has_failed=True), patch("/project/a", has_failed=True)])
def test_an_action_that_failed_in_the_sandbox_needs_another_approval(mode: str, action: Action) -> None:
    decided = decide(action, chosen("on-failure", mode), policy=policy_of(mode), unconfined=None, safe=False)

    assert decided == Ask(reason="command failed; retry without sandbox?", leaves_sandbox=True)


@pytest.mark.parametrize("policy", ["on-failure", "on-request", "never"])
@pytest.mark.parametrize("what", ["command", "inside"])
def test_nothing_runs_unconfined_without_a_policy(policy: str, what: str) -> None:
    action, safe = ACTIONS[what]

    decided = decide(action, chosen(policy, "workspace-write"), policy=None, unconfined=None, safe=safe)

    assert not isinstance(decided, Granted)


def test_a_patch_may_reach_all_of_a_root_and_nothing_beside_it() -> None:
    everything = SandboxPolicy(writable=(WritableRoot(path="/", device=1, inode=2),))
    failing = chosen("on-failure", "workspace-write")

    assert [
        decide(patch(path), failing, policy=policy, unconfined=None, safe=False)
        for path, policy in [("/etc/x", everything), ("/scratch", WRITABLE), ("/scratch.d/x", WRITABLE)]
    ] == [
        Granted(policy=everything, ask_again=True),
        Granted(policy=WRITABLE, ask_again=True),
        Ask(leaves_sandbox=True),
    ]


LEFT = ("/project/.git",)
LEFT_REASON = "an earlier command changed protected files that could not be restored: /project/.git"
LEFT_WITHIN = Granted(policy=WRITABLE, by_person=True, accepted=LEFT)

UNRESTORED: dict[tuple[str, str, str], Decision] = {
    ("on-request", "workspace-write", "command"): Ask(unrestored=LEFT, leaves_sandbox=False, within=LEFT_WITHIN),
    ("on-failure", "workspace-write", "command"): Ask(
        unrestored=LEFT, leaves_sandbox=False, within=replace(LEFT_WITHIN, ask_again=True)
    ),
    ("never", "workspace-write", "command"): RejectedByPolicy(why=LEFT_REASON),
    ("untrusted", "workspace-write", "command"): Ask(unrestored=LEFT, leaves_sandbox=True),
    ("on-request", "workspace-write", "escalated"): Ask(reason=WHY, unrestored=LEFT, leaves_sandbox=True),
    ("on-request", "workspace-write", "safe"): Granted(policy=READ_ONLY, known_safe=True),
    ("on-request", "workspace-write", "inside"): Granted(policy=WRITABLE),
}


@pytest.mark.parametrize("case", UNRESTORED, ids=" ".join)
def test_where_files_could_not_be_restored_a_person_decides_on_commands_that_may_write(
    case: tuple[str, str, str],
) -> None:
    policy, mode, name = case
    action, safe = ACTIONS[name]

    decision = decide(
        action, chosen(policy, mode), policy=policy_of(mode), unconfined=None, safe=safe, unrestored=LEFT
    )

    assert decision == UNRESTORED[case]
