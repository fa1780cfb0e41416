"""Errors that only the server raises."""

from __future__ import annotations

from parley.errors import InvalidRequest

__all__ = ["BadCursor", "BadSessionId", "NoContent", "PositionBeyondEnd", "ToolNotOffered", "UnknownTool"]


class ToolNotOffered(InvalidRequest):
    """This tool is not offered to the client."""

    code = "tool_not_offered"

    def __init__(self, tool: str, *, setting: str) -> None:
        super().__init__(f"{tool} is not offered to this client; the setting {setting} offers it")
        self.tool, self.setting = tool, setting


class UnknownTool(InvalidRequest):
    """No tool has this name."""

    code = "unknown_tool"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool '{name}'")
        self.name = name


class NoContent(InvalidRequest):
    """The message has no content items."""

    code = "no_content"

    def __init__(self) -> None:
        super().__init__("No content items provided")


class BadCursor(InvalidRequest):
    """The page cursor was not issued by this server."""

    code = "bad_cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor is not one of ours")
        self.cursor = cursor


class BadSessionId(InvalidRequest):
    """The session id is not a uuid."""

    code = "bad_session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Failed to parse session_id: {session_id!r} is not a uuid")
        self.session_id = session_id


class PositionBeyondEnd(InvalidRequest):
    """The position is beyond the end of the log."""

    code = "position_beyond_end"

    def __init__(self, *, after: int, last: int) -> None:
        super().__init__(f"after is {after}, but the conversation ends at {last}")
        self.after, self.last = after, last
