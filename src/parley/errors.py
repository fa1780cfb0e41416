"""Every error Parley raises on purpose and that crosses from one part to another.

    ParleyError
    ├── InvalidRequest          the client asked for something that cannot be
    │   ├── BadArguments       arguments of a tool do not fit its schema
    │   ├── UnknownConversation
    │   ├── UnknownTool, ToolNotOffered
    │   ├── NoContent
    │   ├── MessageIdTaken
    │   ├── ParentUnknown, UnknownMessage, TurnIsRunning, UnsupportedContent
    │   ├── BadCursor
    │   ├── BadSessionId
    │   ├── PositionBeyondEnd
    │   ├── UnknownQuestion, QuestionIsSettled
    │   └── RemoteRefusal            so another process says, which runs the conversation
    ├── Refusal            understood, and declined
    │   └── ShuttingDown
    ├── ConfigError        the settings cannot be used
    │   ├── BadSetting
    │   ├── ProfileNotFound
    │   └── ProviderNotFound
    ├── BadFile            no conversation can be made of a file
    ├── StoreError         a conversation cannot be read or written
    │   ├── StoreFailed        the system refuses, as it does when the disk is full
    │   │   ├── WriteLockHeld      another process holds the write lock of the home
    │   │   └── HomeLost           the database was removed or replaced while it was open
    │   ├── BadHome            the home cannot hold conversations
    │   ├── Unreadable         what is kept of a conversation is damaged
    │   ├── OwnedElsewhere     another process has its turn
    │   ├── NotOwned           a process was asked that has it not
    │   ├── OwnerUnresponsive        a process was asked that has it, and does not answer
    │   └── LeaseLost             another process has taken it over
    ├── ModelError         the model did not answer as it should
    │   ├── UnexpectedStatus, RetryLimitExceeded, HighDemand, UsageLimitReached
    │   ├── CannotConnect, ModelStreamBroken
    │   └── MissingVariable, BadScript
    ├── ToolError          a tool of the model cannot do what it was asked
    │   ├── CommandNotStarted
    │   │   ├── CommandReplaced  its directory or program is not the approved one
    │   │   └── SandboxUnavailable  the system cannot keep it within its bounds
    │   ├── PatchRefused
    │   │   └── PatchChanged   a file or directory is not what was verified
    │   ├── BadImage
    │   ├── NotStarted         a tool server did not come to answer
    │   ├── CallFailed         a tool server gave no result, whoever asked
    │   └── ToolServerFailed   the same, with the names that the model knows
    └── ClientError        what our own client met
        ├── RequestFailed      the server answered a request with a JSON-RPC error
        ├── ToolFailed         a tool answered that it failed
        ├── StreamEnded        a stream ended while something of it was awaited
        ├── TurnFailed         a turn whose text was awaited ended with an error
        └── Disconnected       the server is gone

Each carries the facts and builds its text from them. `server/error_mapping.py` alone turns them
into what a client reads; `agent/turn.py` alone turns a `ModelError` into an event. `os_detail` has
the words for what the system itself refuses.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

__all__ = [
    "OUT_OF_MEMORY",
    "BadArguments",
    "BadCursor",
    "BadFile",
    "BadHome",
    "BadImage",
    "BadScript",
    "BadSessionId",
    "BadSetting",
    "CallFailed",
    "CannotConnect",
    "ClientError",
    "CommandNotStarted",
    "CommandReplaced",
    "ConfigError",
    "ConnectionLost",
    "Disconnected",
    "HighDemand",
    "HomeLost",
    "InvalidRequest",
    "LeaseLost",
    "MessageIdTaken",
    "MissingVariable",
    "ModelError",
    "ModelStreamBroken",
    "NoContent",
    "NotOwned",
    "NotStarted",
    "OwnedElsewhere",
    "OwnerUnresponsive",
    "ParentUnknown",
    "ParleyError",
    "PatchChanged",
    "PatchRefused",
    "PositionBeyondEnd",
    "ProfileNotFound",
    "ProviderNotFound",
    "QuestionIsSettled",
    "Refusal",
    "RemoteRefusal",
    "ReplyCutOff",
    "ReplyTooLarge",
    "RequestFailed",
    "RetryLimitExceeded",
    "SandboxUnavailable",
    "ShuttingDown",
    "StoreError",
    "StoreFailed",
    "StreamEnded",
    "ToolError",
    "ToolFailed",
    "ToolNotOffered",
    "ToolServerFailed",
    "TurnFailed",
    "TurnIsRunning",
    "UnexpectedStatus",
    "UnknownConversation",
    "UnknownMessage",
    "UnknownQuestion",
    "UnknownTool",
    "Unreadable",
    "UnsupportedContent",
    "UsageLimitReached",
    "WriteLockHeld",
    "limit_reached",
    "os_detail",
    "with_limit",
]


def os_detail(error: OSError) -> str:
    """What the system said, as clients and models read it: `No such file or directory (os error 2)`.

    Without a number where it was not the system that said so. An error that means a limit names the limit.
    """
    said = error.strerror or str(error)
    return with_limit(f"{said} (os error {error.errno})", error.errno) if error.errno else said


def with_limit(said: str, number: int) -> str:
    """Add the limit that an errno means, if it means one."""
    limit = _limit(number)
    return f"{said}: {limit}" if limit else said


def _limit(number: int) -> str:
    match number:
        case errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"the server may have {most} files and connections open (RLIMIT_NOFILE, `ulimit -n`)"
        case errno.ENFILE:
            return "all processes of this computer have reached their common limit (fs.file-max)"
        case errno.ENOMEM:
            return "no more memory is available (RLIMIT_AS, the memory limit of the control group, or the computer)"
        case errno.EAGAIN:
            return "no more processes or threads may be started (RLIMIT_NPROC, pids.max of the control group)"
        case _:
            return ""


OUT_OF_MEMORY: Final = (
    "the server has not enough memory for this (RLIMIT_AS, the memory limit of the control group, or the computer)"
)


_NO_MEMORY_TO_LOAD: Final = ("failed to map segment", "cannot allocate memory")
"""What the dynamic linker says, in lower case, when there is no memory for a library."""


def limit_reached(error: BaseException) -> str | None:
    """Describe the limit of the system that an error means; None: it means none."""
    match error:
        case MemoryError():
            return OUT_OF_MEMORY
        case OSError(errno=int(number)) if _limit(number):
            return os_detail(error)
        case ImportError(msg=str(why)) if any(sign in why.lower() for sign in _NO_MEMORY_TO_LOAD):
            return OUT_OF_MEMORY
        case RuntimeError(args=("can't start new thread",)):
            return f"no thread could be started: {_limit(errno.EAGAIN)}"
        case _:
            return None


class ParleyError(Exception):
    """The root: catching it catches nothing that is a bug of ours."""


# --- the client's side ---------------------------------------------------------------


class InvalidRequest(ParleyError):
    """The client asked for something that cannot be; nothing was changed."""


class BadArguments(InvalidRequest):
    """The arguments of a tool call do not fit the tool's schema."""

    def __init__(self, detail: str, *, field: str) -> None:
        super().__init__(detail)
        self.detail, self.field = detail, field


class UnknownConversation(InvalidRequest):
    """No conversation has this id."""

    def __init__(self, conversation: str) -> None:
        super().__init__(f"no conversation {conversation}")
        self.conversation = conversation


class ToolNotOffered(InvalidRequest):
    """The client is not offered this tool."""

    def __init__(self, tool: str, *, setting: str) -> None:
        super().__init__(f"{tool} is not offered to this client; the setting {setting} offers it")
        self.tool, self.setting = tool, setting


class UnknownTool(InvalidRequest):
    """No tool of ours has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool '{name}'")
        self.name = name


class NoContent(InvalidRequest):
    """A message without a single content item."""

    def __init__(self) -> None:
        super().__init__("No content items provided")


class MessageIdTaken(InvalidRequest):
    """The message id stands for other content already."""

    def __init__(self, message_id: str) -> None:
        super().__init__("Message id was used for another message")
        self.message_id = message_id


class ParentUnknown(InvalidRequest):
    """No message has the id that was given as parent."""

    def __init__(self, message_id: str) -> None:
        super().__init__("Parent message does not exist")
        self.message_id = message_id


class UnknownMessage(InvalidRequest):
    """No message has this id."""

    def __init__(self) -> None:
        super().__init__("Message does not exist")


class TurnIsRunning(InvalidRequest):
    """It can be done only while nothing runs."""

    def __init__(self) -> None:
        super().__init__("A turn is running")


class UnsupportedContent(InvalidRequest):
    """An item of a message that cannot be given to the model."""

    def __init__(self, place: int, detail: str) -> None:
        super().__init__(f"content[{place}]: {detail}")
        self.place, self.detail = place, detail


class BadCursor(InvalidRequest):
    """A page cursor that we did not hand out."""

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor is not one of ours")
        self.cursor = cursor


class BadSessionId(InvalidRequest):
    """A session id that is no uuid."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Failed to parse session_id: {session_id!r} is not a uuid")
        self.session_id = session_id


class PositionBeyondEnd(InvalidRequest):
    """A client asked for what follows a position the log has not reached."""

    def __init__(self, *, after: int, last: int) -> None:
        super().__init__(f"after is {after}, but the conversation ends at {last}")
        self.after, self.last = after, last


class UnknownQuestion(InvalidRequest):
    """No question has this id."""

    def __init__(self) -> None:
        super().__init__("Question does not exist")


class QuestionIsSettled(InvalidRequest):
    """The question has its answer already."""

    def __init__(self, decision: str) -> None:
        super().__init__(f"Question is settled: {decision}")
        self.decision = decision


class RemoteRefusal(InvalidRequest):
    """What another process says, in its words."""


class Refusal(ParleyError):
    """Understood, and declined; nothing was changed."""


class ShuttingDown(Refusal):
    """The server is on its way out and takes no new work."""

    def __init__(self) -> None:
        super().__init__("Server is shutting down")


# --- settings ------------------------------------------------------------------------


class ConfigError(ParleyError):
    """The settings cannot be used as they are."""


class BadSetting(ConfigError):
    """A setting that cannot be read or does not fit, with the place where it stands."""

    def __init__(
        self, detail: str, *, source: str | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        place = f"{source}, line {line}" if source and line else source
        named = f"`{key}`: {detail}" if key else detail
        super().__init__(f"{place}: {named}" if place else named)
        self.detail, self.source, self.line, self.key = detail, source, line, key


class ProfileNotFound(ConfigError):
    def __init__(self, profile: str) -> None:
        super().__init__(f"config profile `{profile}` not found")
        self.profile = profile


class ProviderNotFound(ConfigError):
    def __init__(self, provider: str) -> None:
        super().__init__(f"Model provider `{provider}` not found")
        self.provider = provider


# --- files ---------------------------------------------------------------------------


class BadFile(ParleyError):
    """A file that no conversation can be made of; nothing was changed."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(f"line {line}: {detail}")
        self.line, self.detail = line, detail


# --- the store -----------------------------------------------------------------------


class StoreError(ParleyError):
    """A conversation cannot be read or written."""


class StoreFailed(StoreError):
    """The system refuses; nothing was changed."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the conversation cannot be written down: {detail}")
        self.detail = detail


class WriteLockHeld(StoreFailed):
    """Another process held the write lock of the home for as long as the caller could wait; nothing was changed."""

    def __init__(self, holder: str) -> None:
        """`holder` describes the process, as `stores/lock_holders.py` does."""
        super().__init__(f"{holder} holds the write lock of the home; nothing was changed")
        self.holder = holder


class HomeLost(StoreFailed):
    """Files of the database were removed or replaced while it was open. This process cannot use the home again."""

    def __init__(self, home: str, files: Sequence[str], saved: str) -> None:
        """`saved` says what was saved of it."""
        were = f"{' and '.join(files)} {'were' if len(files) > 1 else 'was'}"
        detail = f"{were} removed or replaced while Parley had the database open. {saved} Restart Parley."
        StoreError.__init__(self, f"{home}: {detail}")
        self.home, self.files, self.saved, self.detail = home, files, saved, f"{home}: {detail}"


class BadHome(StoreError):
    """The home cannot hold conversations."""

    def __init__(self, home: str, detail: str) -> None:
        super().__init__(f"{home}: {detail}")
        self.home, self.detail = home, detail


class Unreadable(StoreError):
    """What is kept of a conversation is damaged; nothing was changed."""

    def __init__(self, conversation: str, detail: str) -> None:
        super().__init__(f"conversation {conversation} cannot be read: {detail}")
        self.conversation, self.detail = conversation, detail


class OwnedElsewhere(StoreError):
    """Another process has its turn."""

    def __init__(self, *, pid: int, address: str, lock_holder: str | None = None) -> None:
        """`pid` is 0 while the owner is unknown: it waits for the write lock, which `lock_holder` holds."""
        super().__init__(f"{_process(pid)} runs a turn of the conversation")
        self.pid, self.address, self.lock_holder = pid, address, lock_holder


class NotOwned(StoreError):
    """A process was asked to do something in a conversation whose turn it does not run, or that process is gone."""

    def __init__(self) -> None:
        super().__init__("the process that was asked does not run the conversation")


class OwnerUnresponsive(StoreError):
    """The process that runs a turn does not answer. What it was asked it may still do, if it goes on."""

    def __init__(self, *, pid: int) -> None:
        super().__init__(f"{_process(pid)} runs a turn of the conversation and does not answer; was it stopped?")
        self.pid = pid


def _process(pid: int) -> str:
    return f"process {pid}" if pid else "another process"


class LeaseLost(StoreError):
    """Another process has taken the conversation over: what this one would write does not count any more."""

    def __init__(self) -> None:
        super().__init__("another process has taken the conversation over")


# --- the model -----------------------------------------------------------------------


class ModelError(ParleyError):
    """The model did not answer as it should. The text is what the client reads."""

    worth_repeating: ClassVar[bool] = True
    """Whether the turn may ask again (docs/protocol.md, failures of the model)."""


class UnexpectedStatus(ModelError):
    """A status that no repetition will change."""

    worth_repeating = False

    def __init__(self, status: int, reason: str, body: str) -> None:
        super().__init__(f"unexpected status {status} {reason}: {body}")
        self.status, self.reason, self.body = status, reason, body


class RetryLimitExceeded(ModelError):
    """429 or 5xx, also at the last try."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"exceeded retry limit, last status: {status} {reason}")
        self.status, self.reason = status, reason


class HighDemand(ModelError):
    """500 from the Responses API, also at the last try."""

    def __init__(self) -> None:
        super().__init__("We're currently experiencing high demand, which may cause temporary errors.")


class UsageLimitReached(ModelError):
    """The account behind the key has used up what it may use."""

    worth_repeating = False

    def __init__(self, resets_in_seconds: int | None = None) -> None:
        when = "" if resets_in_seconds is None else f" It resets in {resets_in_seconds} seconds."
        super().__init__(f"You've hit your usage limit.{when or ' Try again later.'}")
        self.resets_in_seconds = resets_in_seconds


class CannotConnect(ModelError):
    """No connection to the provider's address could be made."""

    def __init__(self, url: str, detail: str, *, max_retries: int = 0) -> None:
        super().__init__(f"error sending request for url ({url}): {detail}")
        self.url, self.detail = url, detail
        self.max_retries = max_retries
        """How often the turn may try to connect again, within `agent/patience.py`'s time limit."""


class ConnectionLost(ModelError):
    """The connection was lost before the provider answered the request, or the answer was not HTTP."""

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"error sending request for url ({url}): {detail}")
        self.url, self.detail = url, detail


class ModelStreamBroken(ModelError):
    """The answer began and did not end as it should."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"stream disconnected before completion: {detail}")
        self.detail = detail


class ReplyTooLarge(ModelError):
    """The model's reply exceeds one of the provider's limits for replies."""

    worth_repeating = False

    def __init__(self, what: str, limit: int, *, setting: str, provider: str = "NAME") -> None:
        super().__init__(
            f"the model's reply exceeded the limit of {limit} {what} "
            f"(setting `model_providers.{provider}.{setting}`)"
        )
        self.what, self.limit, self.setting = what, limit, setting

    def of_provider(self, provider: str) -> ReplyTooLarge:
        """The same error with the provider's id in the name of the setting."""
        return ReplyTooLarge(self.what, self.limit, setting=self.setting, provider=provider)


class ReplyCutOff(ModelError):
    """The provider cut off one reply after another in the middle of a call."""

    worth_repeating = False

    def __init__(self, reason: str, times: int) -> None:
        super().__init__(f"the model's reply was cut off in the middle of a call, {times} times in a row: {reason}")
        self.reason, self.times = reason, times


class MissingVariable(ModelError):
    """The provider's key is to come from a variable that is not set."""

    worth_repeating = False

    def __init__(self, variable: str, instructions: str | None) -> None:
        hint = f" {instructions}" if instructions else ""
        super().__init__(f"Missing environment variable: `{variable}`.{hint}")
        self.variable, self.instructions = variable, instructions


class BadScript(ModelError):
    """The script of the embedded provider cannot be read, or is not one."""

    worth_repeating = False

    def __init__(self, source: str, detail: str) -> None:
        super().__init__(f"script {source}: {detail}")
        self.source, self.detail = source, detail


# --- tools of the model ----------------------------------------------------------------


class ToolError(ParleyError):
    """A tool cannot do what the model asked for. The text is what the model is told."""


class CommandNotStarted(ToolError):
    """There was nothing to run, or the system refused."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class CommandReplaced(CommandNotStarted):
    """The working directory or the program of a command is not the one that was approved; nothing of it has run."""

    def __init__(self, changed: Literal["directory", "program"]) -> None:
        what = "working directory" if changed == "directory" else "program"
        super().__init__(f"the {what} is not the one that was approved")
        self.changed: Literal["directory", "program"] = changed


class SandboxUnavailable(CommandNotStarted):
    """The system cannot keep a command within its bounds, and so nothing of it has run."""


class PatchRefused(ToolError):
    """A patch that cannot be read, does not fit the files, or may not touch them; nothing was changed."""


class PatchChanged(PatchRefused):
    """A file or directory of a patch is not what it was when the patch was verified; nothing was changed."""


class BadImage(ToolError):
    """A file that cannot be shown to a model."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.detail = path, detail


class NotStarted(ToolError):
    """A tool server did not come to answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class CallFailed(ToolError):
    """A call of a tool server without a result; `detail` where the server gave no answer that could be read."""

    def __init__(self, detail: str | None) -> None:
        super().__init__(detail or "the server answered with an error")
        self.detail = detail


class ToolServerFailed(ToolError):
    """A call that a tool server did not answer with a result; `detail` where it did not answer at all."""

    def __init__(self, server: str, tool: str, detail: str | None = None) -> None:
        why = f": {detail}" if detail else ""
        super().__init__(f"tool call error: tool call failed for `{server}/{tool}`{why}")
        self.server, self.tool, self.detail = server, tool, detail


# --- our own client --------------------------------------------------------------------


class ClientError(ParleyError):
    """A call of the client did not do what it was asked to do."""


class RequestFailed(ClientError):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


class ToolFailed(ClientError):
    """A tool answered that it failed, and why."""

    def __init__(self, tool: str, message: str) -> None:
        super().__init__(f"{tool}: {message or 'no reason given'}")
        self.tool, self.message = tool, message


class CallCancelled(ClientError):
    """This client has cancelled the call, and the server sends no result."""

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class StreamEnded(ClientError):
    """A stream ended before what was awaited from it; `reason` is the server's word, if it gave one."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "the stream was closed")
        self.reason = reason


class TurnFailed(ClientError):
    """A turn ended with an error; `text` is what the agent said before it."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.message, self.text = message, text


class Disconnected(ClientError):
    """The server closed its output or exited; `exit_code` is set if it has exited."""

    def __init__(self, exit_code: int | None) -> None:
        how = "closed its output" if exit_code is None else f"exited with {exit_code}"
        super().__init__(f"the server {how}")
        self.exit_code = exit_code
