"""`parley answer`: lists the open approvals, shows one, or decides one."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from parley.cli.approval_output import print_approval
from parley.cli.connecting import connected
from parley.cli.event_output import approval_json
from parley.cli.ids import SHORT, find_approval
from parley.cli.printing import print_json, print_note, print_nothing_found
from parley.cli.runner import UsageError
from parley.cli.server_address import add_server_options, server_address
from parley.client import Approval, Client
from parley.wire.events import Decision

__all__ = ["DECISIONS", "DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
List the open approval requests of agents in the home, oldest first; with APPROVAL_ID,
show one with its whole patch; with DECISION, decide it: approve it once, approve it and
the same action for the session, deny it, or deny it and end the turn (abort). Only the
first decision has an effect.

If no other server uses the conversation, the turn continues in this command until it
ends or requests another approval. Control characters are escaped on a terminal.

With --json, each line is a JSON object: `{"type": "approval"}` with `approval_id`,
`conversation_id`, `kind`, `message`, and `command`, `cwd` or `changes`; or, after a
decision, `{"type": "answer"}` with `approval_id` and `decision`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

POLL_SECONDS: Final = 1.0
"""The maximum time, in seconds, between two requests for the state of the conversation. The command also asks for
the state if no event arrives, because the state can change without an event.
"""

DECISIONS: Final[dict[str, Decision]] = {
    "approve": "approved",
    "approve-for-session": "approved_for_session",
    "deny": "denied",
    "abort": "abort",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="APPROVAL_ID", nargs="?", help="the id of the approval, or a unique prefix of it"
    )
    parser.add_argument("decision", metavar="DECISION", nargs="?", choices=DECISIONS, help=" | ".join(DECISIONS))
    parser.add_argument("--reason", metavar="TEXT", help="the reason for a denial; the agent reads the reason")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    if args.reason is not None and args.decision != "deny":
        raise UsageError("--reason requires the decision `deny`")
    async with connected("answer", server_address(args)) as server:
        if args.id is None:
            approvals = await server.client.approvals()
            for approval in approvals:
                _show(approval, as_json=args.json, is_folded=True)
            if not approvals:
                print_nothing_found("answer", "there are no open approvals")
            return 0
        approval = await find_approval(server.client, args.id)
        if args.decision is None:
            _show(approval, as_json=args.json, is_folded=False)
            if not args.json:
                short = (approval.approval_id or "")[:SHORT]
                print_note("answer", f"to decide: `parley answer {short} approve`, or deny")
            return 0
        decision = DECISIONS[args.decision]
        await server.client.answer(approval.approval_id or "", decision, reason=args.reason)
        if args.json:
            print_json({"type": "answer", "approval_id": approval.approval_id, "decision": decision})
        if server.child is not None and approval.conversation_id is not None:
            await _finish(server.client, approval.conversation_id, pid=server.child.pid)
    return 0


def _show(approval: Approval, *, as_json: bool, is_folded: bool) -> None:
    if as_json:
        print_json(approval_json(approval))
    else:
        print_approval(approval, is_folded=is_folded)


async def _finish(client: Client, conversation_id: str, *, pid: int) -> None:
    """If the turn of the conversation is running in the child process `pid` of this command, wait until the turn
    ends. Otherwise return immediately.

    If the command did not wait, its exit would end the child process and interrupt the turn.
    """
    conversation = client.conversation(conversation_id)
    status = await conversation.status()
    if status.state != "running" or status.owner is None or status.owner.pid != pid:
        return
    print_note("answer", "no other server has this conversation, so the turn runs in this command until it ends")
    async with conversation.stream(after=status.seq) as stream:
        while (await conversation.status()).state == "running":
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await anext(stream)
            except TimeoutError:
                pass
            except StopAsyncIteration:  # another client has taken over the stream
                await asyncio.sleep(POLL_SECONDS)
