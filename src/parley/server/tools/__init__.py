"""The table of the tools. Each tool has a file."""

from __future__ import annotations

from typing import Final

from parley.server.error_mapping import Faults
from parley.server.tools.approval_answer import answer_question
from parley.server.tools.approvals_list import list_questions
from parley.server.tools.archive import archive
from parley.server.tools.codex import codex
from parley.server.tools.codex_reply import codex_reply
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
            "conversation and conversationRead shows what came of it."
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
        description="Open a conversation with a coding agent. Nothing is sent to the model yet.",
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
        description="Say something in a conversation; the agent works in the background. Stream or read to follow.",
        args=SendMessageArguments,
        result=MessageAccepted,
        run=send,
        faults=Faults.SEND,
        annotations=_ACTS,
    ),
    Tool(
        "conversationStream",
        title="Stream a conversation",
        description="Get all that happened in a conversation, then all that happens, as notifications. "
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
        description="All conversations, latest activity first.",
        args=ConversationsListArguments,
        result=ConversationsListResult,
        run=list_conversations,
        faults=Faults.PLAIN,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationRead",
        title="Read a conversation",
        description="What is newer than a position, waiting for it if asked to. "
        "For clients that cannot take notifications.",
        args=ConversationReadArguments,
        result=ConversationReadResult,
        run=read,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationInterrupt",
        title="Interrupt the agent",
        description="Stop what the agent is doing; the conversation goes on with the next message.",
        args=ConversationArguments,
        result=PlainOk,
        run=interrupt,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationStatus",
        title="Status of a conversation",
        description="Whether the agent is idle, working or waiting for an answer, and what it has cost so far.",
        args=ConversationArguments,
        result=ConversationStatusResult,
        run=status,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "conversationRename",
        title="Rename a conversation",
        description="Give a conversation a title of your own.",
        args=ConversationRenameArguments,
        result=PlainOk,
        run=rename,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationArchive",
        title="Archive a conversation",
        description="Take a conversation out of the list, or put it back. Nothing of it is lost.",
        args=ConversationArchiveArguments,
        result=PlainOk,
        run=archive,
        faults=Faults.TYPED,
        annotations=_STOPS,
    ),
    Tool(
        "conversationDelete",
        title="Delete a conversation",
        description="Remove a conversation for ever. Not while its agent works.",
        args=ConversationArguments,
        result=PlainOk,
        run=delete,
        faults=Faults.TYPED,
        annotations=_DELETES,
    ),
    Tool(
        "conversationFork",
        title="Fork a conversation",
        description="Begin a new conversation with all that happened in another, up to a message and its answer.",
        args=ConversationForkArguments,
        result=ConversationForked,
        run=fork,
        faults=Faults.TYPED,
        annotations=_OPENS,
    ),
    Tool(
        "approvalsList",
        title="List open questions",
        description="What agents wait to be allowed, the oldest first: of all conversations, or of one.",
        args=ApprovalsListArguments,
        result=ApprovalsListResult,
        run=list_questions,
        faults=Faults.TYPED,
        annotations=_LOOKS,
    ),
    Tool(
        "approvalAnswer",
        title="Answer a question",
        description="Decide whether an agent may do what it waits to be allowed. The first answer counts.",
        args=ApprovalAnswerArguments,
        result=PlainOk,
        run=answer_question,
        faults=Faults.TYPED,
        annotations=_ACTS,
        answers_approvals=True,
    ),
)
