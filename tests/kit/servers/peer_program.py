"""Another process of a home, which sends messages that a test specifies.

Its arguments are the home and the limit of open files; 0 means the limit of the system. It prints its address, and
then every message that it receives. If a message has the member `say`, the program sends the lines in this member
over the same connection, with the id of the request in place of `$id`. With the member `leave`, it then closes the
connection. A line `METHOD PARAMS` on stdin is sent to all other processes. The end of stdin ends the program.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

from parley.peers import UnixPeers
from parley.transports.unix import Connection
from parley.wire.framing import Overlong


async def main(home: str, most_files: int) -> None:
    if most_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    peers = UnixPeers(home, serve)
    await peers.listen()
    write(peers.address)
    while line := await asyncio.to_thread(sys.stdin.readline):
        method, _, params = line.strip().partition(" ")
        peers.notify_all(method, params.encode())
    await peers.close()


async def serve(connection: Connection) -> None:
    def take(frame: bytes | Overlong) -> None:
        try:
            message = json.loads(frame) if isinstance(frame, bytes) else None
        except ValueError:
            message = None
        if not isinstance(message, dict):
            connection.stop_reading()
            return
        write(message)
        params = message.get("params", {})
        for line in params.get("say", ()):
            connection.outbox.send(line.replace("$id", str(message.get("id"))).encode())
        if "leave" in params:
            connection.stop_reading()

    await connection.read(take)


def write(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
