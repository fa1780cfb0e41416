"""The table of the tools. Each tool has a file."""

from __future__ import annotations

from typing import Final

from parley.server.error_mapping import Faults
from parley.server.tools.approval_answer import answer_question
from parley.server.tools.approvals_list import list_questions
from parley.server.tools.archive import archive
from parley.server.tools.codex import codex
from parley.server.tools.codex_reply import codex_reply
from parley.server.tools.continue_ import continue_
from parley.server.tools.create import create
from parley.server.tools.delete import delete
from parley.server.tools.fork import fork
from parley.server.tools.interrupt import interrupt
from parley.server.tools.list import list_conversations
from parley.server.tools.read import read
from parley.server.tools.rename import rename
from parley.server.tools.send import send
from parley.server.tools.status import status
from parley.server.tools.stream import stream
from parley.server.tooltable import Tool, ToolTable
from parley.wire.mcp import ToolAnnotations
from parley.wire.tools import (
    ApprovalAnswerArguments,
    ApprovalsListArguments,
    ApprovalsListResult,
    CodexArguments,
    CodexReplyArguments,
    CodexResult,
    ConversationArchiveArguments,
    ConversationArguments,
    ConversationCreateArguments,
    ConversationCreated,
    ConversationForkArguments,
    ConversationForked,
    ConversationReadArguments,
    ConversationReadResult,
    ConversationRenameArguments,
    ConversationsListArguments,
    ConversationsListResult,
    ConversationStatusResult,
    ConversationStreamArguments,
    MessageAccepted,
    PlainCodexReplyArguments,
    PlainConversationCreateArguments,
    PlainOk,
    SendMessageArguments,
    StreamStarted,
)

__all__ = ["TOOLS"]

_ACTS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
"""The agent may change files and use the network, as far as its settings allow."""
_LOOKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_OPENS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_STOPS: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_DELETES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)

TOOLS: Final = ToolTable(
    Tool(
        "codex",
        title="Codex",
        description=(
            "Start a conversation with a coding agent, run one request to its end, and return the agent's last "
            "message. For work that may take more than a minute use conversationCreate, conversationSendMessage "
            "and conversationRead instead. If this call times out, the agent goes on: conversationsList finds the "
            "conversation and conversationRead shows the result."
        ),
        args=CodexArguments,
        result=CodexResult,
        run=codex,
        faults=Faults.CODEX,
        annotations=_ACTS,
    ),
    Tool(
        "codex-reply",
        title="Codex Reply",
        description=(
            "Continue a conversation with one more request, and return the agent's last message. A request to an "
            "agent that is still working joins its work. For long work use conversationSendMessage and "
            "conversationRead."
        ),
        args=CodexReplyArguments,
        plain_args=PlainCodexReplyArguments,
        result=CodexResult,
        run=codex_reply,
        faults=Faults.CODEX,
        annotations=_ACTS,
    ),
    Tool(
        "conversationCreate",
        title="Create a conversation",
        description="Create a conversation with a coding agent. Nothing is sent to the model yet.",
        args=ConversationCreateArguments,
        plain_args=PlainConversationCreateArguments,
        result=ConversationCreated,
        run=create,
        faults=Faults.CREATE,
        annotations=_OPENS,
    ),
    Tool(
        "conversationSendMessage",
        title="Send a message",
        description=(
            "Send a message to the agent of a conversation. Returns at once; the agent works in the background. "
            "Use conversationRead or conversationStream to see what it does."
        ),
        args=SendMessageArguments,
        result=MessageAccepted,
        run=send,
        faults=Faults.SEND,
        annotations=_ACTS,
    ),
    Tool(
        "conversationStream",
        title="Stream a conversation",
        description="Send all events of a conversation so far as notifications, and then live events. "
        "Cancel this request to pause.",
        args=ConversationStreamArguments,
        result=StreamStarted,
        run=stream,
        faults=Faults.STREAM,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationsList",
        title="List conversations",
        description="List conversations, latest activity first.",
        args=ConversationsListArguments,
        result=ConversationsListResult,
        run=list_conversations,
        faults=Faults.PLAIN,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationRead",
        title="Read a conversation",
        description="Return the events after a position; with wait_seconds, wait for the next ones. "
        "For clients that cannot receive notifications.",
        args=ConversationReadArguments,
        result=ConversationReadResult,
        run=read,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationInterrupt",
        title="Interrupt the agent",
        description="Interrupt the running turn. The next message continues the conversation.",
        args=ConversationArguments,
        result=PlainOk,
        run=interrupt,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationContinue",
        title="Continue after an interrupted turn",
        description=(
            "Let the agent go on after a turn that was interrupted or failed, without a new message. Returns at "
            "once; the agent works in the background."
        ),
        args=ConversationArguments,
        result=PlainOk,
        run=continue_,
        faults=Faults.TYPED,
        annotations=_ACTS,
        is_addition=True,
    ),
    Tool(
        "conversationStatus",
        title="Status of a conversation",
        description="Return whether the agent is idle, working or waiting for an approval, and its token usage.",
        args=ConversationArguments,
        result=ConversationStatusResult,
        run=status,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationRename",
        title="Rename a conversation",
        description="Set the title of a conversation.",
        args=ConversationRenameArguments,
        result=PlainOk,
        run=rename,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationArchive",
        title="Archive a conversation",
        description="Remove a conversation from the list, or restore it to the list. Nothing is deleted.",
        args=ConversationArchiveArguments,
        result=PlainOk,
        run=archive,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationDelete",
        title="Delete a conversation",
        description="Delete a conversation permanently. Fails while its agent works.",
        args=ConversationArguments,
        result=PlainOk,
        run=delete,
        faults=Faults.TYPED,
        annotations=_DELETES,
    ),
    Tool(
        "conversationFork",
        title="Fork a conversation",
        description="Create a conversation with the history of another one, up to a message if one is named.",
        args=ConversationForkArguments,
        result=ConversationForked,
        run=fork,
        faults=Faults.TYPED,
        annotations=_OPENS,
    ),
    Tool(
        "approvalsList",
        title="List open approvals",
        description="List the approvals that agents wait for, oldest first, of all conversations or of one.",
        args=ApprovalsListArguments,
        result=ApprovalsListResult,
        run=list_questions,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "approvalAnswer",
        title="Answer an approval",
        description="Approve or deny an action that an agent waits for. The first answer counts.",
        args=ApprovalAnswerArguments,
        result=PlainOk,
        run=answer_question,
        faults=Faults.TYPED,
        annotations=_ACTS,
        answers_approvals=True,
    ),
)
