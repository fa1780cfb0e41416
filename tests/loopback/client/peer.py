"""A server that says what a test tells it to, over stdin and stdout.

Its one argument is a JSON object: for a method, or a tool's name, a list of what to write when
it is asked for: messages (`"$id"` stands for the id of the request), `{"raw": text}` as it is,
`{"exit": code}`, or `{"close": "stdout"}`. All that it was sent it tells to whoever asks for
`test/received`. With `"stubborn": []` it ignores the end of its stdin, and SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

INITIALIZED = {
    "id": "$id",
    "result": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "peer", "version": "1"},
    },
}


def main() -> None:
    script: dict[str, list[dict[str, Any]]] = {"initialize": [INITIALIZED], **json.loads(sys.argv[1])}
    received: list[Any] = []
    if "stubborn" in script:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "test/received":
            write({"id": message["id"], "result": received})
            continue
        received.append(message)
        name = message["params"]["name"] if method == "tools/call" else method
        for one in script.get(name, ()):
            perform(one, message.get("id"))
    while "stubborn" in script:
        signal.pause()


def perform(one: dict[str, Any], request_id: object) -> None:
    if "exit" in one:
        sys.exit(one["exit"])
    if "close" in one:
        os.close(1)
    elif "raw" in one:
        sys.stdout.write(one["raw"])
        sys.stdout.flush()
    else:
        write({name: request_id if value == "$id" else value for name, value in one.items()})


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
