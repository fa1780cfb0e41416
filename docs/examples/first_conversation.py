import asyncio

import parley


async def main() -> None:
    async with parley.connect() as client:
        conversation = await client.create(cwd=".")
        turn = await conversation.send("What does this repository do?")
        print((await turn.result()).text)


asyncio.run(main())
