"""Errors that only the tools raise. The model reads their text."""

from __future__ import annotations

from typing import Literal

from parley.errors import CommandNotStarted, ToolError

__all__ = [
    "BadImage",
    "CallFailed",
    "CommandReplaced",
    "NotStarted",
    "PatchChanged",
    "PatchNotApplied",
    "ToolServerFailed",
]


class CommandReplaced(CommandNotStarted):
    """Raised when a command was not started, because its working directory or program is not the approved one."""

    def __init__(self, changed: Literal["directory", "program"]) -> None:
        what = "working directory" if changed == "directory" else "program"
        super().__init__(f"the {what} is not the one that was approved")
        self.changed: Literal["directory", "program"] = changed


class PatchNotApplied(ToolError):
    """Raised when a patch was not applied: it is invalid, does not match the files, would change protected files,
    or could not be written completely. Unless the message names files that could not be restored, nothing was
    changed.
    """


class PatchChanged(PatchNotApplied):
    """Raised when a file or directory changed after the patch was verified. Nothing was written."""


class BadImage(ToolError):
    """Raised when an image file cannot be read, or is not an image that a model can view."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.detail = path, detail


class NotStarted(ToolError):
    """Raised when a tool server could not be started."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class CallFailed(ToolError):
    """Raised by a connection to a tool server when a tool call failed. `detail` is the reason; None if the server
    returned a JSON-RPC error. The error is converted to `ToolServerFailed` for the model.
    """

    def __init__(self, detail: str | None) -> None:
        super().__init__(detail or "the server returned an error")
        self.detail = detail


class ToolServerFailed(ToolError):
    """Raised when a call to a tool server failed. The message for the model names the server and the tool."""

    def __init__(self, server: str, tool: str, detail: str | None = None) -> None:
        why = f": {detail}" if detail else ""
        super().__init__(f"tool call error: tool call failed for `{server}/{tool}`{why}")
        self.server, self.tool, self.detail = server, tool, detail
