"""Errors that more than one package raises or catches. Errors of a single package are in its own `errors.py`.

    ParleyError
    ├── InvalidRequest     a request from a client cannot be executed; nothing was changed
    ├── ShuttingDown       the server accepts no new work
    ├── ConfigError        the settings cannot be used
    ├── BadFile            a file contains no conversation that can be imported
    ├── StoreError         a conversation cannot be read or written
    ├── WorkspaceUnavailable  the worktree of a conversation cannot be prepared
    ├── ModelError         the model gave no response, or an invalid one
    ├── ToolError          a tool cannot execute the model's call
    └── ClientError        a request of Parley's client library failed (`client/errors.py`)

An error builds its message from its fields. `code` is the stable name that clients read; docs/protocol.md lists all
error codes. `server/error_mapping.py` turns errors into results, and `agent/turn.py` turns a `ModelError` into an
event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

__all__ = [
    "BRANCH_DIVERGED",
    "COMMIT_FAILED",
    "COMMIT_MISSING",
    "FETCH_FAILED",
    "INTERNAL_ERROR",
    "LIMIT_REACHED",
    "PUSH_FAILED",
    "RESOURCE_LIMIT",
    "TOOL_SERVER_FAILED",
    "WORK_SET_ASIDE",
    "ApprovalIsSettled",
    "BadArguments",
    "BadFile",
    "BadHome",
    "BadSetting",
    "BodyTooLarge",
    "BodyUnreadable",
    "CannotConnect",
    "CommandNotStarted",
    "ConfigError",
    "HomeLost",
    "InvalidRequest",
    "LeaseLost",
    "ModelError",
    "ModelStreamBroken",
    "NoLink",
    "NodeIdTaken",
    "NotOwned",
    "OutcomeUnknown",
    "OwnedElsewhere",
    "OwnerNotLinked",
    "OwnerUnresponsive",
    "ParleyError",
    "ReplyTooLarge",
    "SandboxUnavailable",
    "SettingNotAllowed",
    "ShuttingDown",
    "StoreError",
    "StoreFailed",
    "ToolError",
    "UnexpectedStatus",
    "UnknownConversation",
    "Unreadable",
    "UnsupportedContent",
    "VisibleError",
    "WorkspaceUnavailable",
    "WriteLockHeld",
]


INTERNAL_ERROR: Final = "internal_error"
"""The error code for a failure that was caused by a bug in the server."""
RESOURCE_LIMIT: Final = "resource_limit"
"""The error code for a failure that was caused by a limit of the operating system."""
LIMIT_REACHED: Final = "limit_reached"
"""The error code for a turn that ended because it reached a limit from the settings."""
TOOL_SERVER_FAILED: Final = "tool_server_failed"
"""The error code for a tool server that could not be started."""

BRANCH_DIVERGED: Final = "branch_diverged"
"""The error code for a branch in the repository that has diverged from the branch of the conversation."""
COMMIT_FAILED: Final = "commit_failed"
"""The error code for a failure to commit files of a worktree."""
COMMIT_MISSING: Final = "commit_missing"
"""The error code for a conversation whose newest commit was never pushed and is not on this computer."""
FETCH_FAILED: Final = "fetch_failed"
"""The error code for a failure to fetch from the repository. The turn then begins at the conversation's newest
commit on this computer.
"""
PUSH_FAILED: Final = "push_failed"
"""The error code for a failure to push commits of a conversation."""
WORK_SET_ASIDE: Final = "work_set_aside"
"""The error code for uncommitted or unpushed work that conflicted with checking out the conversation's newest
commit. The work was stored under another name in the clone, or in a directory beside the worktree.
"""


class ParleyError(Exception):
    """The base class of all errors that Parley defines."""


class VisibleError(ParleyError):
    """An error that is reported to clients."""

    code: str
    """The error code, a stable name for programs. docs/protocol.md lists all error codes."""


class InvalidRequest(VisibleError):
    """Raised when a request from a client cannot be executed. Nothing was changed."""


class BadArguments(InvalidRequest):
    """Raised when the arguments of a tool call do not match the schema of the tool."""

    code = "bad_arguments"

    def __init__(self, detail: str, *, field: str) -> None:
        super().__init__(detail)
        self.detail, self.field = detail, field


class UnknownConversation(InvalidRequest):
    """Raised when no conversation has the id in a request."""

    code = "unknown_conversation"

    def __init__(self, conversation: str) -> None:
        super().__init__(f"no conversation {conversation}")
        self.conversation = conversation


class SettingNotAllowed(InvalidRequest):
    """Raised when the role of the principal does not allow the value of a setting."""

    code = "setting_not_allowed"

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting} {reason}")
        self.setting = setting


class WorkspaceUnavailable(VisibleError):
    """Raised when a turn cannot run because the worktree of its conversation cannot be prepared."""

    code = "workspace_unavailable"

    def __init__(self, repository: str, detail: str) -> None:
        super().__init__(f"the repository {repository} cannot be used: {detail}")
        self.repository, self.detail = repository, detail


class UnsupportedContent(InvalidRequest):
    """Raised when an item of a message cannot be sent to the model."""

    code = "unsupported_content"

    def __init__(self, place: int, detail: str) -> None:
        super().__init__(f"content[{place}]: {detail}")
        self.place, self.detail = place, detail


class ApprovalIsSettled(InvalidRequest):
    """Raised when a client answers an approval that has already been settled."""

    code = "approval_settled"

    def __init__(self, decision: str, *, by: str, principal: str | None, reason: str | None, at: float) -> None:
        """Create the error from the data of the event `approval_settled`. `at` is the time of the settlement, in
        seconds since the epoch.
        """
        super().__init__(f"Question is settled: {decision}")
        self.decision, self.by, self.principal, self.reason, self.at = decision, by, principal, reason, at


class ShuttingDown(VisibleError):
    """Raised when the server is shutting down and accepts no new work."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("Server is shutting down")


class ConfigError(VisibleError):
    """Raised when the settings cannot be used."""

    source: str | None = None
    """The source of the setting: the absolute path of a file, the name of an environment variable, or an option
    such as `-c`. None if the source is unknown.
    """


class BadSetting(ConfigError):
    """Raised when a setting cannot be read or has an invalid value. The message names the file, the line and the
    key if they are known. `is_invalid_toml` is True if a line of the file is not valid TOML. `parley config` cannot
    change such a file.
    """

    code = "bad_setting"

    def __init__(
        self,
        detail: str,
        *,
        source: str | None = None,
        line: int | None = None,
        key: str | None = None,
        is_invalid_toml: bool = False,
    ) -> None:
        place = f"{source}, line {line}" if source and line else source
        named = f"`{key}`: {detail}" if key else detail
        super().__init__(f"{place}: {named}" if place else named)
        self.detail, self.source, self.line, self.key = detail, source, line, key
        self.is_invalid_toml = is_invalid_toml


class BadFile(ParleyError):
    """Raised when a file does not contain a conversation that can be imported. Nothing was changed."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(f"line {line}: {detail}")
        self.line, self.detail = line, detail


class StoreError(VisibleError):
    """Raised when a conversation cannot be read or written."""


class StoreFailed(StoreError):
    """Raised when the operating system or the database could not execute a read or a write. Nothing was changed."""

    code = "store_failed"

    def __init__(self, detail: str) -> None:
        super().__init__(f"conversations cannot be read or stored: {detail}")
        self.detail = detail


class OutcomeUnknown(StoreError):
    """Raised when the database did not respond to a write in time. The write may still take effect."""

    code = "outcome_unknown"

    def __init__(self) -> None:
        super().__init__("the database does not answer. The call may still take effect")


class WriteLockHeld(StoreFailed):
    """Raised when another process held the write lock of the home until the deadline. Nothing was changed."""

    code = "write_lock_held"

    def __init__(self, holder: str) -> None:
        """Create the error. `holder` describes the process that holds the write lock
        (`stores/sqlite/lock_holders.py`).
        """
        super().__init__(f"{holder} holds the write lock of the home; nothing was changed")
        self.holder = holder


class HomeLost(StoreFailed):
    """Raised when database files were removed or replaced while the database was open. This process can no longer
    use the home.
    """

    code = "home_lost"

    def __init__(self, home: str, files: Sequence[str], saved: str) -> None:
        """Create the error. `saved` is a sentence that says which data was saved and how to restore it."""
        were = f"{' and '.join(files)} {'were' if len(files) > 1 else 'was'}"
        detail = f"{were} removed or replaced while Parley had the database open. {saved} Restart Parley."
        StoreError.__init__(self, f"{home}: {detail}")
        self.home, self.files, self.saved, self.detail = home, files, saved, f"{home}: {detail}"


class BadHome(StoreError):
    """Raised when the home directory cannot be used to store conversations."""

    code = "bad_home"

    def __init__(self, home: str, detail: str) -> None:
        super().__init__(f"{home}: {detail}")
        self.home, self.detail = home, detail


class NodeIdTaken(BadHome):
    """Raised when another running process uses the node id of this process."""

    code = "node_id_taken"


class Unreadable(StoreError):
    """Raised when the stored data of a conversation is damaged. Nothing was changed."""

    code = "unreadable"

    def __init__(self, conversation: str, detail: str) -> None:
        super().__init__(f"conversation {conversation} cannot be read: {detail}")
        self.conversation, self.detail = conversation, detail


class OwnedElsewhere(StoreError):
    """Raised when another process is running a turn of the conversation."""

    code = "owned_elsewhere"

    def __init__(
        self,
        *,
        node: str = "",
        pid: int,
        address: str,
        lock_holder: str | None = None,
        shares_database: bool = False,
    ) -> None:
        """Create the error from the fields of the owner (`ports/store.py:Owner`). `node` is empty if the owner runs
        on the same computer or container as this process. `shares_database` is True if several homes can use the
        store, so that the owner may use another home.

        `pid` is 0 if the owner is still waiting for the write lock of the home, because the process id is stored
        only when the lock has been acquired. `lock_holder` then describes the process that holds the write lock.
        """
        self.process = "another process" if not pid else f"process {pid} on {node}" if node else f"process {pid}"
        super().__init__(f"{self.process} runs a turn of the conversation")
        self.pid, self.address, self.lock_holder = pid, address, lock_holder
        self.shares_database = shares_database


class NotOwned(StoreError):
    """Raised when the process that received a request from another process is not running the turn of the
    conversation, or has exited.
    """

    code = "not_owned"

    def __init__(self) -> None:
        super().__init__("the process that received the request is not running the conversation")


class OwnerUnresponsive(StoreError):
    """Raised when the process that is running a turn does not respond to a request.

    That process may still execute the request later.
    """

    code = "owner_unresponsive"

    def __init__(self, process: str) -> None:
        """Create the error. `process` describes the owner, for example `process 42`."""
        silent = f"{process} runs a turn of the conversation and does not answer; was it stopped?"
        super().__init__(f"{silent} The call may still take effect")
        self.process = process


class OwnerNotLinked(OwnerUnresponsive):
    """Raised when this process cannot reach the process that is running a turn: the two processes use different
    homes, and at least one of them is not a node. Nothing was changed.
    """

    code = "owner_not_linked"

    def __init__(self, process: str) -> None:
        """Create the error. `process` describes the owner, for example `process 42`."""
        StoreError.__init__(
            self,
            f"{process} runs a turn of the conversation and uses another home, and this server cannot reach it; "
            "nothing was changed. Make both servers nodes: run them with `parley serve` and give them the same "
            "PARLEY_NODE_TOKEN (docs/postgres.md#nodes). Or try again after the turn",
        )
        self.process = process


class LeaseLost(StoreError):
    """Raised when this process uses a lease that it no longer holds. Another process has taken over the
    conversation, or this process has given up its leases because it could not reach the database.

    This process can no longer write to the conversation.
    """

    code = "lease_lost"

    def __init__(self, *, is_given_up: bool = False) -> None:
        """Create the error.

        `is_given_up` is True if this process gave up its leases because it could not reach the database.
        """
        super().__init__(
            "the server could not reach its database and has stopped its turns. The call may still take effect"
            if is_given_up
            else "another process has taken the conversation over"
        )


class ModelError(VisibleError):
    """Raised when the model gave no response, or an invalid one. The message of this error is shown to clients."""

    worth_repeating: ClassVar[bool] = True
    """True if the turn may repeat the model request (docs/protocol.md#model-errors)."""


class UnexpectedStatus(ModelError):
    """Raised when the provider responds with an HTTP error status that is not retryable."""

    code = "unexpected_status"
    worth_repeating = False

    def __init__(self, status: int, reason: str, body: str) -> None:
        super().__init__(f"unexpected status {status} {reason}: {body}")
        self.status, self.reason, self.body = status, reason, body


class CannotConnect(ModelError):
    """Raised when no connection to the provider could be established."""

    code = "cannot_connect"

    def __init__(self, url: str, detail: str, *, max_retries: int = 0) -> None:
        super().__init__(f"error sending request for url ({url}): {detail}")
        self.url, self.detail = url, detail
        self.max_retries = max_retries
        """The maximum number of times that the turn tries to connect again, within the time limit in
        `agent/retry.py`.
        """


class ModelStreamBroken(ModelError):
    """Raised when the provider began a response, but did not end it as its API requires."""

    code = "stream_broken"

    def __init__(self, detail: str) -> None:
        super().__init__(f"stream disconnected before completion: {detail}")
        self.detail = detail


class ReplyTooLarge(ModelError):
    """Raised when a model response exceeds a size limit in the settings of its provider."""

    code = "reply_too_large"
    worth_repeating = False

    def __init__(self, what: str, limit: int, *, setting: str, provider: str = "NAME") -> None:
        super().__init__(
            f"the model's reply exceeded the limit of {limit} {what} "
            f"(setting `model_providers.{provider}.{setting}`)"
        )
        self.what, self.limit, self.setting = what, limit, setting

    def of_provider(self, provider: str) -> ReplyTooLarge:
        """Return a copy of this error. Its message names the size limit as a setting of the provider `provider`."""
        return ReplyTooLarge(self.what, self.limit, setting=self.setting, provider=provider)


class NoLink(ParleyError):
    """Raised when no connection to another server can be established."""

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        """Create the error. `status` is the HTTP status with which the other server rejected the connection; None
        if the failure had another cause.
        """
        super().__init__(f"no connection to the server: {detail}")
        self.detail, self.status = detail, status


class BodyTooLarge(ParleyError):
    """Raised when the body of an HTTP request exceeds the size limit or does not fit into the available memory."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the body is too large: {detail}")
        self.detail = detail


class BodyUnreadable(ParleyError):
    """Raised when the body of an HTTP request could not be received completely."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the body cannot be read: {detail}")
        self.detail = detail


class ToolError(ParleyError):
    """Raised when a tool cannot execute the model's tool call. The model reads the message of this error."""


class CommandNotStarted(ToolError):
    """Raised when a command is empty, or when the operating system could not start the command."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class SandboxUnavailable(CommandNotStarted):
    """Raised when the sandbox cannot enforce the sandbox policy of a command. The command did not run."""
