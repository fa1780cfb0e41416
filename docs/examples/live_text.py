"""Prints the text of a turn while the model writes it. Needs the MCP SDK: `pip install mcp`."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client


async def main(text: str) -> str | None:
    done, shown = asyncio.get_running_loop().create_future(), ""

    async def show(message) -> None:
        nonlocal shown
        event = message.data["params"].get("msg", {"type": None})
        if event["type"] == "agent_message_delta":
            print(event["delta"], end="", flush=True)
            shown = shown[: message.data["params"]["_meta"]["offset"]] + event["delta"]
        elif event["type"] == "agent_message":
            print(event["message"].removeprefix(shown))  # the rest, because a slow reader does not get all deltas
            shown = ""
        elif event["type"] == "task_complete" or (event["type"] == "error" and "reason" in event):
            done.done() or done.set_result(event.get("message"))  # an error without a reason does not end the turn

    server = StdioServerParameters(command="parley", args=["mcp"], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams, logging_callback=show) as client:
        await client.initialize()
        created = await client.call_tool("conversationCreate", {"cwd": "."})
        its = {"conversation_id": created.structured_content["conversation_id"]}
        await client.call_tool("conversationStream", {**its, "as": "log"})
        await client.call_tool("conversationSendMessage", {**its, "content": [{"type": "text", "text": text}]})
        return await done


sys.exit(asyncio.run(main(" ".join(sys.argv[1:]) or "What does this repository do?")))
