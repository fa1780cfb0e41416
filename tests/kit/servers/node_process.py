"""A node: `parley serve` as a process with a home of its own and a database that it shares with other nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import aiohttp

from kit.servers.resident_process import ResidentProcess
from parley.client import Client, connect
from parley.common.node_challenge import Challenge, new_nonce, read_fields, write_fields
from parley.testing import ScriptedModel
from parley.wire.nodes import NODE_VERSIONS

__all__ = ["NODE_TOKEN", "NodeProcess", "link_headers"]

NODE_TOKEN: Final = "a-token-that-all-nodes-of-the-tests-share"


async def link_headers(
    session: aiohttp.ClientSession, url: str, *versions: str, token: str = NODE_TOKEN
) -> dict[str, str]:
    """Return the headers that open one link to the node whose endpoint for other nodes is `url`. They prove the
    token.
    """
    caller, offered = new_nonce(), ", ".join(versions or NODE_VERSIONS)
    headers = {"Authorization": write_fields(caller=caller), "Sec-WebSocket-Protocol": offered}
    async with session.get(url, headers=headers) as answer:
        fields = read_fields(answer.headers.get("WWW-Authenticate", ""))
    version, called = fields.get("version", ""), fields.get("called", "")
    challenge = Challenge(url=url.removesuffix("/node"), version=version, caller=caller, called=called)
    proof = challenge.proof(token, "caller")
    return {"Authorization": write_fields(caller=caller, called=called, version=version, proof=proof)}


class NodeProcess(ResidentProcess):
    """A node with an id: `async with NodeProcess(model, directory, "a", url) as node`.

    By default, all nodes share the file system (`workspace`).
    """

    def __init__(
        self,
        model: ScriptedModel,
        directory: Path,
        node_id: str,
        store_url: str,
        *,
        config: str = "",
        workspace: str = 'mode = "shared"',
        token: str = NODE_TOKEN,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(
            model,
            directory / node_id / "home",
            config=f'{config}\n[node]\nid = "{node_id}"\n[workspace]\n{workspace}\n',
            env={"PARLEY_STORE_URL": store_url, "PARLEY_NODE_TOKEN": token, **(env or {})},
            arguments=arguments,
            **options,
        )
        self.id = node_id

    def client(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Return a client of the node, over HTTP."""
        return connect(url=self.description["url"], **{"token": self.description["token"], **options})
