"""A call that fails because of a shutdown reports the shutdown, and not the operation that failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.approvals import approval_id
from kit.servers.local_server import LocalServer
from parley.server.tools import TOOLS

SAYS: Final = [{"type": "text", "text": "0"}]

MESSAGE: Final = "22222222-2222-4222-8222-222222222222"
MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "codex": {"prompt": "0"},
    "codex-reply": {"prompt": "0"},
    "conversationCreate": {"prompt": "", "model": "m", "cwd": "/project"},
    "conversationSendMessage": {"content": SAYS},
    "conversationMarkRead": {"seq": 0},
    "conversationRename": {"title": "Foxes"},
    "conversationSearch": {"text": "0"},
    "queueEdit": {"content": SAYS, "message_id": MESSAGE},
    "queueRemove": {"message_id": MESSAGE},
    "approvalAnswer": {"approval_id": approval_id(1), "decision": "approved"},
}
"""The arguments that a tool needs in addition to the conversation."""
NEED_NONE: Final = frozenset(
    {"codex", "conversationCreate", "conversationsList", "attentionList", "approvalsList", "approvalAnswer"}
)


NEED_NO_STORE: Final = frozenset({"settingsList"})
"""Tools that also work during a shutdown."""


@pytest.mark.parametrize("tool", [tool.name for tool in TOOLS if tool.name not in NEED_NO_STORE])
async def test_calls_during_the_shutdown_get_an_error_that_says_so(tmp_path: Path, tool: str) -> None:
    async with LocalServer(str(tmp_path)) as server:
        client, conversation = await server.client(), await server.create()
        await server.conversations.stop()
        await server.conversations.close()
        named = "sessionId" if tool == "codex-reply" else "conversation_id"
        which = {} if tool in NEED_NONE else {named: conversation.id}

        result = (await client.answer_to(client.call(tool, **which, **MORE.get(tool, {}))))["result"]

        said = result.get("structuredContent", {}).get("message", result["content"][0]["text"])
        assert (said, result["isError"]) == ("Server is shutting down", True)
