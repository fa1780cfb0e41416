"""Prints the text of a turn while the model writes it. Needs the MCP SDK: `pip install mcp`."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp_types import LoggingMessageNotificationParams


async def main(prompt: str) -> None:
    done = asyncio.Event()

    async def show(message: LoggingMessageNotificationParams) -> None:
        if message.logger == "parley.conversation":
            match message.data["params"].get("msg"):
                case {"type": "agent_message_delta", "delta": delta}:
                    print(delta, end="", flush=True)
                case {"type": "agent_message"}:
                    print()
                case {"type": "error"} as error:
                    print(error["message"], file=sys.stderr)
                    if "reason" in error:  # the error ended the turn
                        done.set()
                case {"type": "task_complete"}:
                    done.set()

    server = StdioServerParameters(command="parley", args=["mcp"], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams, logging_callback=show) as session:
        await session.initialize()
        created = await session.call_tool("conversationCreate", {"cwd": "."})
        conversation = created.structured_content["conversation_id"]
        await session.call_tool("conversationStream", {"conversation_id": conversation, "as": "log"})
        content = [{"type": "text", "text": prompt}]
        await session.call_tool("conversationSendMessage", {"conversation_id": conversation, "content": content})
        await done.wait()


asyncio.run(main(" ".join(sys.argv[1:]) or "What does this repository do?"))
