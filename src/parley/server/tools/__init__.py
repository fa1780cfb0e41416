"""The table of all tools that the server offers to clients. Each tool has its own module."""

from __future__ import annotations

from typing import Final

from parley.server.context import Role
from parley.server.error_mapping import ErrorShape
from parley.server.tools.approval_answer import answer_approval
from parley.server.tools.approvals_list import list_approvals
from parley.server.tools.archive import archive
from parley.server.tools.attention_list import list_attention
from parley.server.tools.codex import codex
from parley.server.tools.codex_reply import codex_reply
from parley.server.tools.compact import compact
from parley.server.tools.continue_ import continue_
from parley.server.tools.create import create
from parley.server.tools.delete import delete
from parley.server.tools.fork import fork
from parley.server.tools.interrupt import interrupt
from parley.server.tools.list import list_conversations
from parley.server.tools.mark_read import mark_read
from parley.server.tools.queue_edit import edit_queued
from parley.server.tools.queue_list import list_queue
from parley.server.tools.queue_remove import remove_queued
from parley.server.tools.queue_resume import resume_queue
from parley.server.tools.read import read
from parley.server.tools.rename import rename
from parley.server.tools.search import search
from parley.server.tools.send import send
from parley.server.tools.settings_list import list_settings
from parley.server.tools.status import status
from parley.server.tools.stream import stream
from parley.server.tooltable import Tool, ToolTable
from parley.wire.mcp import ToolAnnotations
from parley.wire.tools import (
    ApprovalAnswerArguments,
    ApprovalsListArguments,
    ApprovalsListResult,
    AttentionListArguments,
    AttentionListResult,
    CodexArguments,
    CodexReplyArguments,
    CodexResult,
    ConversationArchiveArguments,
    ConversationArguments,
    ConversationCreateArguments,
    ConversationCreated,
    ConversationForkArguments,
    ConversationForked,
    ConversationMarkReadArguments,
    ConversationReadArguments,
    ConversationReadResult,
    ConversationRenameArguments,
    ConversationSearchArguments,
    ConversationSearchResult,
    ConversationsListArguments,
    ConversationsListResult,
    ConversationStatusResult,
    ConversationStreamArguments,
    MessageAccepted,
    PlainCodexArguments,
    PlainCodexReplyArguments,
    PlainConversationCreateArguments,
    PlainConversationReadArguments,
    PlainConversationStreamArguments,
    PlainOk,
    PlainSendMessageArguments,
    QueueEditArguments,
    QueueListResult,
    QueueRemoveArguments,
    SendMessageArguments,
    SettingsListArguments,
    SettingsListResult,
    StreamEnded,
    StreamStarted,
)

__all__ = ["TOOLS"]

_ACTS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
"""The annotations of tools that run the agent. The agent may change files, and may use the network if the settings
of the conversation allow it.
"""
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
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
            "and conversationRead instead. If this call times out, the agent continues to work: conversationsList "
            "finds the conversation and conversationRead shows the result."
        ),
        args=CodexArguments,
        plain_args=PlainCodexArguments,
        result=CodexResult,
        run=codex,
        may_ask=True,
        error_shape=ErrorShape.CODEX,
        annotations=_ACTS,
        role=Role.DRIVER,
        creates_conversation=True,
        can_be_task=True,
    ),
    Tool(
        "codex-reply",
        title="Codex Reply",
        description=(
            "Continue a conversation with one more request, and return the agent's last message. A request to an "
            "agent that is still working joins the running turn. For work that may take more than a minute use "
            "conversationSendMessage and conversationRead."
        ),
        args=CodexReplyArguments,
        plain_args=PlainCodexReplyArguments,
        result=CodexResult,
        run=codex_reply,
        may_ask=True,
        error_shape=ErrorShape.CODEX,
        annotations=_ACTS,
        role=Role.DRIVER,
        can_be_task=True,
    ),
    Tool(
        "conversationCreate",
        title="Create a conversation",
        description="Create a conversation with a coding agent. Nothing is sent to the model yet.",
        args=ConversationCreateArguments,
        plain_args=PlainConversationCreateArguments,
        result=ConversationCreated,
        run=create,
        error_shape=ErrorShape.CREATE,
        annotations=_OPENS,
        role=Role.DRIVER,
        creates_conversation=True,
    ),
    Tool(
        "conversationSendMessage",
        title="Send a message",
        description=(
            "Send a message to the agent of a conversation. Returns at once; the agent works in the background. "
            "Use conversationRead or conversationStream to see what the agent does."
        ),
        args=SendMessageArguments,
        plain_args=PlainSendMessageArguments,
        result=MessageAccepted,
        run=send,
        error_shape=ErrorShape.SEND,
        annotations=_ACTS,
        role=Role.DRIVER,
    ),
    Tool(
        "conversationStream",
        title="Stream a conversation",
        description="Send all events of a conversation so far as notifications, and then live events. "
        "Cancel this request to pause.",
        args=ConversationStreamArguments,
        plain_args=PlainConversationStreamArguments,
        result=StreamStarted,
        run=stream,
        may_ask=True,
        modern_result=StreamEnded,
        error_shape=ErrorShape.STREAM,
        annotations=_READS,
        role=Role.OBSERVER,
    ),
    Tool(
        "conversationsList",
        title="List conversations",
        description="List conversations, latest activity first.",
        args=ConversationsListArguments,
        result=ConversationsListResult,
        run=list_conversations,
        error_shape=ErrorShape.PLAIN,
        annotations=_READS,
        role=Role.OBSERVER,
    ),
    Tool(
        "conversationRead",
        title="Read a conversation",
        description="Return the events after a position. With wait_seconds, wait if there are no events yet. With "
        "before, return the last events before a position. For clients that cannot receive notifications.",
        args=ConversationReadArguments,
        plain_args=PlainConversationReadArguments,
        result=ConversationReadResult,
        run=read,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
    ),
    Tool(
        "conversationMarkRead",
        title="Mark a conversation as read",
        description="Store the position up to which you have read a conversation. After its next turn, the "
        "conversation is unread again.",
        args=ConversationMarkReadArguments,
        result=PlainOk,
        run=mark_read,
        error_shape=ErrorShape.TYPED,
        annotations=_STOPS,
        role=Role.OBSERVER,
        is_addition=True,
    ),
    Tool(
        "conversationSearch",
        title="Search in conversations",
        description="Find messages of the user and the agent that contain a text, the newest first, in all "
        "conversations or in one. conversationRead returns the events around a message.",
        args=ConversationSearchArguments,
        result=ConversationSearchResult,
        run=search,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
        is_addition=True,
    ),
    Tool(
        "conversationInterrupt",
        title="Interrupt the agent",
        description="Interrupt the running turn. The next message continues the conversation.",
        args=ConversationArguments,
        result=PlainOk,
        run=interrupt,
        error_shape=ErrorShape.TYPED,
        annotations=_STOPS,
        role=Role.DRIVER,
    ),
    Tool(
        "conversationContinue",
        title="Continue after an interrupted turn",
        description=(
            "Let the agent continue after a turn that was interrupted or failed, without a new message. Returns at "
            "once; the agent works in the background."
        ),
        args=ConversationArguments,
        result=PlainOk,
        run=continue_,
        error_shape=ErrorShape.TYPED,
        annotations=_ACTS,
        role=Role.DRIVER,
        is_addition=True,
    ),
    Tool(
        "conversationCompact",
        title="Compact a conversation",
        description=(
            "Replace the history that the agent sees with a summary. Returns at once; the agent writes the summary "
            "in the background."
        ),
        args=ConversationArguments,
        result=PlainOk,
        run=compact,
        error_shape=ErrorShape.TYPED,
        annotations=_ACTS,
        role=Role.DRIVER,
        is_addition=True,
    ),
    Tool(
        "conversationStatus",
        title="Status of a conversation",
        description="Return whether the agent is idle, working or waiting for an approval, and its token usage.",
        args=ConversationArguments,
        result=ConversationStatusResult,
        run=status,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
    ),
    Tool(
        "conversationRename",
        title="Rename a conversation",
        description="Set the title of a conversation.",
        args=ConversationRenameArguments,
        result=PlainOk,
        run=rename,
        error_shape=ErrorShape.TYPED,
        annotations=_STOPS,
        role=Role.DRIVER,
    ),
    Tool(
        "conversationArchive",
        title="Archive a conversation",
        description="Remove a conversation from the list, or restore it to the list. Nothing is deleted.",
        args=ConversationArchiveArguments,
        result=PlainOk,
        run=archive,
        error_shape=ErrorShape.TYPED,
        annotations=_STOPS,
        role=Role.DRIVER,
    ),
    Tool(
        "conversationDelete",
        title="Delete a conversation",
        description="Delete a conversation permanently. Fails while its agent works.",
        args=ConversationArguments,
        result=PlainOk,
        run=delete,
        error_shape=ErrorShape.TYPED,
        annotations=_DELETES,
        role=Role.DRIVER,
    ),
    Tool(
        "conversationFork",
        title="Fork a conversation",
        description="Create a conversation with the history of another conversation, or with the part of this "
        "history up to a message.",
        args=ConversationForkArguments,
        result=ConversationForked,
        run=fork,
        error_shape=ErrorShape.TYPED,
        annotations=_OPENS,
        role=Role.DRIVER,
        creates_conversation=True,
    ),
    Tool(
        "queueList",
        title="List queued messages",
        description="List the queued messages, which wait until the agent has finished. The next message is first.",
        args=ConversationArguments,
        result=QueueListResult,
        run=list_queue,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
        is_addition=True,
    ),
    Tool(
        "queueEdit",
        title="Edit a queued message",
        description="Replace the content of a queued message. Fails if the agent has begun to work on the message.",
        args=QueueEditArguments,
        result=PlainOk,
        run=edit_queued,
        error_shape=ErrorShape.TYPED,
        annotations=_STOPS,
        role=Role.DRIVER,
        is_addition=True,
    ),
    Tool(
        "queueRemove",
        title="Remove a queued message",
        description="Remove a queued message. Fails if the agent has begun to work on the message.",
        args=QueueRemoveArguments,
        result=PlainOk,
        run=remove_queued,
        error_shape=ErrorShape.TYPED,
        annotations=_DELETES,
        role=Role.DRIVER,
        is_addition=True,
    ),
    Tool(
        "queueResume",
        title="Resume the queue",
        description="Let the agent begin with the next queued message after a turn that was interrupted or failed.",
        args=ConversationArguments,
        result=PlainOk,
        run=resume_queue,
        error_shape=ErrorShape.TYPED,
        annotations=_ACTS,
        role=Role.DRIVER,
        is_addition=True,
    ),
    Tool(
        "attentionList",
        title="List what needs attention",
        description="List the conversations that wait for an approval, have failed, or have finished and were not "
        "marked as read.",
        args=AttentionListArguments,
        result=AttentionListResult,
        run=list_attention,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
        is_addition=True,
    ),
    Tool(
        "settingsList",
        title="List settings for a new conversation",
        description="List the models, profiles, directories, approval policies and sandbox modes that a new "
        "conversation can have, and the defaults.",
        args=SettingsListArguments,
        result=SettingsListResult,
        run=list_settings,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
        is_addition=True,
    ),
    Tool(
        "approvalsList",
        title="List open approvals",
        description="List the approvals that agents wait for, oldest first, in all conversations or in one.",
        args=ApprovalsListArguments,
        result=ApprovalsListResult,
        run=list_approvals,
        error_shape=ErrorShape.TYPED,
        annotations=_READS,
        role=Role.OBSERVER,
    ),
    Tool(
        "approvalAnswer",
        title="Answer an approval",
        description="Approve or deny an action that an agent waits for. The first answer counts.",
        args=ApprovalAnswerArguments,
        result=PlainOk,
        run=answer_approval,
        error_shape=ErrorShape.ANSWER,
        annotations=_ACTS,
        role=Role.APPROVER,
        answers_approvals=True,
    ),
)
