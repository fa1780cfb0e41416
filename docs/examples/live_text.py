"""Prints the text of a turn while the model writes it. Needs the MCP SDK: `pip install mcp`."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client


async def main(text: str) -> None:
    done = asyncio.Event()

    async def show(message) -> None:
        event = message.data["params"].get("msg", {"type": None})
        if event["type"] == "agent_message_delta":
            print(event["delta"], end="", flush=True)
        elif event["type"] == "agent_message":
            print()
        elif event["type"] == "error":
            print(event["message"], file=sys.stderr)
        if event["type"] == "task_complete" or (event["type"] == "error" and "reason" in event):
            done.set()  # an error without a reason does not end the turn

    server = StdioServerParameters(command="parley", args=["mcp"], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams, logging_callback=show) as client:
        await client.initialize()
        created = await client.call_tool("conversationCreate", {"cwd": "."})
        its = {"conversation_id": created.structured_content["conversation_id"]}
        await client.call_tool("conversationStream", {**its, "as": "log"})
        await client.call_tool("conversationSendMessage", {**its, "content": [{"type": "text", "text": text}]})
        await done.wait()


asyncio.run(main(" ".join(sys.argv[1:]) or "What does this repository do?"))
