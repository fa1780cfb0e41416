"""A scripted server over stdin and stdout.

Its argument is a JSON object that contains, for a method or the name of a tool, the steps for each such request. A
step is a message (`"$id"` is replaced with the id of the request), `{"raw": text}`, `{"exit": code}` or `{"close":
"stdout"}`. The steps in `{"once": steps}` apply to the first request only, and the steps in `{"then": steps}` to
later requests. The method `test/received` returns all messages that the server has received. With `"stubborn": []`,
the server ignores the end of its stdin and SIGTERM.
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
    begun: set[str] = set()
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
            if "once" in one and name not in begun:
                begun.add(name)
                several(one["once"], message.get("id"))
                break
            if "then" in one:
                several(one["then"], message.get("id"))
            elif "once" not in one:
                perform(one, message.get("id"))
    while "stubborn" in script:
        signal.pause()


def several(steps: list[dict[str, Any]], request_id: object) -> None:
    for one in steps:
        perform(one, request_id)


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
