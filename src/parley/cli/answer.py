"""`parley answer`: list the open approvals, or decide one."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from parley.cli.connecting import connected
from parley.cli.ids import SHORT, find_approval
from parley.cli.printing import print_json, print_note, print_text
from parley.cli.runner import UsageError
from parley.client import Approval, Client
from parley.wire.events import Decision

__all__ = ["DECISIONS", "DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
List what agents of the home wait for, oldest first, or decide one request: approve
it once, approve it and the same again for the session, deny it, or deny it and end
the turn (abort). The first decision of any client counts.

If no server has the conversation, the turn goes on in this command until it ends or
asks again. Control characters are escaped on a terminal.

With --json, each line is a JSON object: `{"type": "approval"}` with `approval_id`,
`conversation_id`, `kind`, `message`, and `command`, `cwd` or `changes`; or, after a
decision, `{"type": "answer"}` with `approval_id` and `decision`.

exit code: 0, 2 for a usage error, else 1."""

DECISIONS: Final[dict[str, Decision]] = {
    "approve": "approved",
    "approve-for-session": "approved_for_session",
    "deny": "denied",
    "abort": "abort",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="APPROVAL_ID", nargs="?", help="the id of the approval, or a beginning that only one has"
    )
    parser.add_argument("decision", metavar="DECISION", nargs="?", choices=DECISIONS, help=" | ".join(DECISIONS))
    parser.add_argument("--reason", metavar="TEXT", help="why it is denied; the agent reads it")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")


async def run(args: argparse.Namespace) -> int:
    if args.id is not None and args.decision is None:
        raise UsageError(f"a decision is missing (choose from {', '.join(DECISIONS)})")
    if args.reason is not None and args.decision != "deny":
        raise UsageError("--reason needs the decision `deny`")
    async with connected("answer") as server:
        if args.id is None:
            for approval in await server.client.approvals():
                _show(approval, as_json=args.json)
            return 0
        approval = await find_approval(server.client, args.id)
        decision = DECISIONS[args.decision]
        await server.client.answer(approval.approval_id or "", decision, reason=args.reason)
        if args.json:
            print_json({"type": "answer", "approval_id": approval.approval_id, "decision": decision})
        if server.child is not None and approval.conversation_id is not None:
            await _finish(server.client, approval.conversation_id, pid=server.child.pid)
    return 0


def _show(approval: Approval, *, as_json: bool) -> None:
    if as_json:
        names = ("approval_id", "conversation_id", "kind", "message", "command", "cwd", "changes")
        members = {name: getattr(approval, name) for name in names}
        print_json({"type": "approval", **{name: value for name, value in members.items() if value is not None}})
        return
    conversation = (approval.conversation_id or "")[:SHORT]
    print_text(f"{(approval.approval_id or '')[:SHORT]}  {approval.kind}, in conversation {conversation}")
    for line in approval.message.splitlines():
        print_text(f"    {line}")


async def _finish(client: Client, conversation_id: str, *, pid: int) -> None:
    """Wait until the turn ends if it runs in the child process: the end of that process would interrupt the
    turn.
    """
    conversation = client.conversation(conversation_id)
    status = await conversation.status()
    if status.state != "running" or status.owner is None or status.owner.pid != pid:
        return
    print_note("answer", "no other server has this conversation, so the turn runs in this command until it ends")
    async with conversation.stream(after=status.seq) as stream:
        while (await conversation.status()).state == "running":
            try:
                async with asyncio.timeout(1):  # the state can change without an event
                    await anext(stream)
            except (TimeoutError, StopAsyncIteration):
                pass
