"""The text of an approval request at each version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from msgspec import structs

from kit.builders.approvals import approval_id, command_approval, limit_approval, patch_approval
from kit.builders.json import as_json
from parley.agent.policy import RETRY
from parley.conversation.approvals import ApprovalEvent, PendingApproval
from parley.conversation.records import ApprovalRequest
from parley.ports.commands import unrestored_reason
from parley.server.approval_text import elicitation, listed
from parley.server.hosts import FULL, PLAIN
from parley.testing import check_message
from parley.wire.elicitation import FULL_SCHEMA, ElicitationParams
from parley.wire.events import AddedFile, FileChange, OtherChange, UpdatedFile
from parley.wire.ids import ConversationId, EventId
from parley.wire.jsonrpc import encode, request
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
NO_FORM = {"type": "object", "properties": {}}

EXEC: dict[str, Any] = {
    "codex_elicitation": "exec-approval",
    "codex_mcp_tool_call_id": "9",
    "codex_event_id": "2",
    "codex_call_id": "call1",
    "codex_command": ["touch", "a b"],
    "codex_cwd": "/project",
}
PATCH: dict[str, Any] = {
    "codex_elicitation": "patch-approval",
    "codex_mcp_tool_call_id": "9",
    "codex_event_id": "2",
    "codex_call_id": "call1",
    "codex_changes": {"/project/new.txt": {"add": {"content": "hello\n"}}},
}


OURS: dict[str, Any] = {"parley_approval_id": approval_id(1), "parley_conversation_id": CONVERSATION}


def approval(shown: ApprovalEvent, asked: ApprovalRequest) -> PendingApproval:
    return PendingApproval(request=asked, event=shown, event_id=EventId("2"), at=1.5)


def asked_of(version: str, shown: ApprovalEvent, asked: ApprovalRequest) -> Any:
    """Return the approval request for a client of this version, which must be a valid MCP request."""
    features = FULL if version == FULL_VERSION else PLAIN
    params = elicitation(approval(shown, asked), CONVERSATION, request="9", features=features)
    check_message(request(0, ElicitationParams.METHOD, encode(params)), version=version)
    return as_json(params)


def test_an_older_client_is_asked_for_a_command_as_ever_whatever_the_reason() -> None:
    shown, asked = command_approval(1, "touch", "a b", reason="needs to write", leaves_sandbox=True)

    assert asked_of(PLAIN_VERSION, shown, asked) == {
        "message": "Allow Codex to run `touch 'a b'` in `/project`?",
        "requestedSchema": NO_FORM,
        **EXEC,
    }


def test_an_older_client_is_asked_for_a_patch_as_ever() -> None:
    assert asked_of(PLAIN_VERSION, *patch_approval(1, leaves_sandbox=True)) == {
        "message": "Allow Codex to apply proposed code changes?",
        "requestedSchema": NO_FORM,
        **PATCH,
    }


def test_an_older_client_reads_why_a_patch_is_wanted() -> None:
    shown, asked = patch_approval(1, reason="outside\nAllow Codex to rest?", grant_root="/project")

    assert asked_of(PLAIN_VERSION, shown, asked) == {
        "message": "outside\\nAllow Codex to rest?\nAllow Codex to apply proposed code changes?",
        "requestedSchema": NO_FORM,
        "codex_reason": "outside\nAllow Codex to rest?",
        "codex_grant_root": "/project",
        **PATCH,
    }


def test_a_newer_client_reads_why_and_where_and_gets_a_form() -> None:
    fields = {**EXEC, "codex_reason": "needs to write", **OURS, "parley_leaves_sandbox": True}
    shown, asked = command_approval(1, "touch", "a b", reason="needs to write", leaves_sandbox=True)

    assert asked_of(FULL_VERSION, shown, asked) == {
        "message": 'The model says: "needs to write"\n'
        "Allow Codex to run `touch 'a b'` in `/project`, outside the sandbox?",
        "requestedSchema": FULL_SCHEMA,
        **fields,
        "_meta": fields,
    }


def test_a_newer_client_is_asked_for_a_patch_with_all_that_is_known() -> None:
    more = {"codex_reason": "why not", "codex_grant_root": "/project", **OURS}
    fields = {**PATCH, **more, "parley_leaves_sandbox": True}
    shown, asked = patch_approval(1, reason="why not", grant_root="/project", leaves_sandbox=True)

    assert asked_of(FULL_VERSION, shown, asked) == {
        "message": 'The model says: "why not"\n'
        "Allow Codex to apply proposed code changes, outside the sandbox?\n- add /project/new.txt",
        "requestedSchema": FULL_SCHEMA,
        **fields,
        "_meta": fields,
    }


def test_a_newer_client_is_asked_whether_to_continue_beyond_a_limit() -> None:
    fields = {
        "codex_elicitation": "limit",
        "codex_mcp_tool_call_id": "9",
        "codex_event_id": "2",
        "codex_call_id": "",
        **OURS,
    }

    assert asked_of(FULL_VERSION, *limit_approval(1, "turn_tokens", used=1234, allowed=1000)) == {
        "message": "turn_tokens reached (1234 of 1000). Go on?",
        "requestedSchema": FULL_SCHEMA,
        **fields,
        "_meta": fields,
    }


def test_without_a_reason_and_with_the_sandbox_nothing_is_said_of_them() -> None:
    command = asked_of(FULL_VERSION, *command_approval(1, "echo", ", outside the sandbox"))
    exec_message = asked_of(FULL_VERSION, *command_approval(1, "touch", "a b"))["message"]
    patch_message = asked_of(FULL_VERSION, *patch_approval(1))["message"]

    assert ", outside the sandbox" in command["message"]
    assert "parley_leaves_sandbox" not in {**command, **command["_meta"]}
    assert exec_message == "Allow Codex to run `touch 'a b'` in `/project`?"
    assert patch_message == "Allow Codex to apply proposed code changes?\n- add /project/new.txt"


@pytest.mark.parametrize("version", [PLAIN_VERSION, FULL_VERSION])
def test_invisible_characters_are_escaped_in_the_message_and_not_in_the_fields(version: str) -> None:
    shown, asked = command_approval(1, "sh", "-c", "a\nb", cwd="/pro\u202eject")
    params = asked_of(version, shown, asked)

    assert params["message"] == "Allow Codex to run `sh -c $'a\\nb'` in `$'/pro\\u202eject'`?"
    assert (params["codex_command"], params["codex_cwd"]) == (["sh", "-c", "a\nb"], "/pro\u202eject")


def test_a_command_of_any_length_is_shown_whole() -> None:
    words = [f"word{number}" for number in range(20_000)]
    shown, asked = command_approval(1, *words)

    assert f"`{' '.join(words)}`" in asked_of(PLAIN_VERSION, shown, asked)["message"]


def test_a_command_is_listed_with_its_words_and_a_patch_with_its_changes() -> None:
    command = approval(*command_approval(1, "touch", "a b", reason="so", leaves_sandbox=True))
    patch = approval(*patch_approval(2))

    assert as_json(listed(command, CONVERSATION)) == {
        "approval_id": approval_id(1),
        "conversation_id": CONVERSATION,
        "call_id": "call1",
        "kind": "exec",
        "message": "The model says: \"so\"\nAllow Codex to run `touch 'a b'` in `/project`, outside the sandbox?",
        "asked_at": "1970-01-01T00:00:01.500Z",
        "command": ["touch", "a b"],
        "cwd": "/project",
        "leaves_sandbox": True,
    }
    assert as_json(listed(patch, CONVERSATION)) == {
        "approval_id": approval_id(2),
        "conversation_id": CONVERSATION,
        "call_id": "call2",
        "kind": "patch",
        "message": "Allow Codex to apply proposed code changes?\n- add /project/new.txt",
        "asked_at": "1970-01-01T00:00:01.500Z",
        "changes": {"/project/new.txt": {"add": {"content": "hello\n"}}},
    }


def test_the_name_of_a_limit_cannot_pass_for_more_than_that() -> None:
    shown, asked = limit_approval(1, "turn_calls\nAllow Codex to run `ls`?\n")

    assert "\n" not in listed(approval(shown, asked), CONVERSATION).message


def changed(changes: Mapping[str, FileChange]) -> list[str]:
    """Return the lines of the approval text about a patch with these changes to files in /project."""
    named = {f"/project/{name}": change for name, change in changes.items()}
    shown, asked = patch_approval(1)
    return listed(approval(structs.replace(shown, changes=named), asked), CONVERSATION).message.split("\n")


def test_a_patch_names_what_becomes_of_each_file() -> None:
    diff = UpdatedFile(unified_diff="", move_path=None)
    moved = UpdatedFile(unified_diff="", move_path="/project/there")

    assert changed(
        {
            "a": OtherChange(add=AddedFile(content="")),
            "b": OtherChange(update=diff),
            "c": OtherChange(update=moved),
            "d": "delete",
        }
    ) == [
        "Allow Codex to apply proposed code changes?",
        "- add /project/a",
        "- update /project/b",
        "- move /project/c to /project/there",
        "- delete /project/d",
    ]


@pytest.mark.parametrize(
    ("files", "last"), [(10, "- delete /project/f9"), (11, "- and 1 more"), (500, "- and 490 more")]
)
def test_of_many_files_ten_are_named_and_the_others_counted(files: int, last: str) -> None:
    _, *lines = changed({f"f{number}": "delete" for number in range(files)})

    assert lines[:10] == [f"- delete /project/f{number}" for number in range(10)]
    assert (lines[-1], len(lines)) == (last, min(files, 11))


def test_the_name_of_a_file_cannot_pass_for_a_line_of_the_approval() -> None:
    name = "x\nAllow Codex to run `ls`?\u202e"

    assert changed({name: "delete"})[1:] == ["- delete $'/project/x\\nAllow Codex to run \\x60ls\\x60?\\u202e'"]


@pytest.mark.parametrize(
    ("said", "shown_as"),
    [
        ("needs it", '"needs it"'),
        ('so"\nAllow Codex to run `ls`?', r'"so\"\nAllow Codex to run `ls`?"'),
        ("wait" + " " * 400 + "Allow Codex to run `ls`?", '"wait Allow Codex to run `ls`?"'),
        ("\u202egnp\x1b[2J", r'"\u202egnp\x1b[2J"'),
        ("y" * 600, f'"{"y" * 500}…"'),
        ("C:\\\\new", r'"C:\\\\new"'),
    ],
    ids=["plain", "a prompt of its own", "blanks that wrap", "unseen", "long", "a backslash"],
)
@pytest.mark.parametrize("ask", [command_approval, patch_approval])
def test_the_model_reason_is_quoted_on_a_separate_line(
    ask: Callable[..., tuple[ApprovalEvent, ApprovalRequest]], said: str, shown_as: str
) -> None:
    arguments = ("ls",) if ask is command_approval else ()
    first, second, *_ = listed(approval(*ask(1, *arguments, reason=said)), CONVERSATION).message.split("\n")

    assert first == f"The model says: {shown_as}"
    assert second.startswith("Allow Codex to ")


ASKED: Final = "Allow Codex to run `ls` in `/project`, outside the sandbox?"
LEFT: Final = unrestored_reason(["/project/.git"])


@pytest.mark.parametrize(
    ("reason", "fields", "lines"),
    [
        (RETRY, {"has_failed": True}, [RETRY]),
        (LEFT, {"unrestored": ("/project/.git",)}, [LEFT]),
        (f"{LEFT}; so", {"unrestored": ("/project/.git",)}, [LEFT, 'The model says: "so"']),
        ("so", {"unrestored": ("/project/.git",)}, [LEFT, 'The model says: "so"']),
        (RETRY, {}, [f'The model says: "{RETRY}"']),
        (LEFT, {}, [f'The model says: "{LEFT}"']),
    ],
    ids=[
        "failed",
        "unrestored",
        "both",
        "an inconsistent record",
        "the text for failed",
        "the text for unrestored",
    ],
)
def test_a_reason_is_the_server_s_only_if_the_record_says_so(
    reason: str, fields: dict[str, Any], lines: list[str]
) -> None:
    shown, asked = command_approval(1, "ls", reason=reason, leaves_sandbox=True)
    message = listed(approval(shown, structs.replace(asked, **fields)), CONVERSATION).message

    assert message.split("\n") == [*lines, ASKED]
