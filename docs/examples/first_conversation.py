import asyncio

import parley


async def main() -> None:
    async with parley.connect() as client:
        conversation = await client.create(cwd=".")
        async with conversation.stream() as stream:
            await conversation.send("What does this repository do?")
            print(await stream.text())


asyncio.run(main())
