"""A tool server as a program: `python tool_server.py MODE [MARKER]`.

The program uses no library, so that it starts quickly and can violate the protocol in any way. The loopback server
of the tests also uses its answers.

Modes:
    serve      answers, and exits when its input is closed
    mute       reads and never answers
    garbage    sends lines that are not messages before and between its answers
    exit       exits at once, with code 3
    noisy      writes 10 MB to stderr before it answers
    stubborn   answers, and exits neither when its input is closed nor on SIGTERM
    leaving    answers, and exits when its input is closed; a child process in its group stays
    odd        offers other tools, most of which are invalid
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["TOOLS", "ToolServerProgram"]

Message = dict[str, Any]

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}

TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "description": "Adds two integers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
    {"name": "env", "description": "Names of its environment variables.", "inputSchema": {"type": "object"}},
    {"name": "fail", "description": "Reports a tool failure.", "inputSchema": NOTHING},
    {
        "name": "image",
        "description": "Returns an image.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["a", "b"]},
                "tags": {"type": "array"},
                "opt": {"type": ["null", "string"]},
            },
        },
    },
    {"name": "rpc_error", "description": "Answers with a JSON-RPC error.", "inputSchema": NOTHING},
    {
        "name": "slow",
        "description": "Sleeps.",
        "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number", "minimum": 0}}},
    },
]
"""The tools of the recorded traffic. Other names that `answer` knows can be called too."""

MORE_TOOLS: list[dict[str, Any]] = [
    {"name": name, "inputSchema": NOTHING}
    for name in (
        "ask",
        "big",
        "cancelled",
        "change_tools",
        "child",
        "crash",
        "deep",
        "echo",
        "pid",
        "release",
        "steps",
        "unreadable",
        "wait",
    )
]


REQUESTS = ("ping", "sampling/createMessage", "roots/list", "elicitation/create")
"""The methods of the requests that the tool `ask` sends to the client."""

LEVELS = 1000
NESTED_JSON = '{"properties": {"a": ' * LEVELS + "{}" + "}}" * LEVELS
"""A schema that is nested too deeply for most decoders; `NESTED` is its placeholder."""

NESTED = "NESTED"

ODD_TOOLS: list[Any] = [
    {"name": "no_schema"},
    {"name": "a_list", "inputSchema": []},
    {"name": "y__add", "description": 7, "inputSchema": NOTHING, "outputSchema": "none", "annotations": [1]},
    {"name": 5, "inputSchema": NOTHING},
    {"name": "", "inputSchema": NOTHING},
    None,
    "add",
    {"name": "nested", "inputSchema": NESTED},
    {"name": "odd_error", "inputSchema": NOTHING},
]
"""The tools of the mode `odd`. Only `y__add`, `nested` and `odd_error` are valid."""


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


class ToolServerProgram:
    """Answers messages in order through `send`."""

    def __init__(self, send: Callable[[Message], None], tools: list[Any] | None = None) -> None:
        self._send = send
        self._waiting: dict[Any, None] = {}
        self._cancelled = 0
        self._asking: Any = None
        self._answers: dict[str, Any] = {}
        self._tools = TOOLS + MORE_TOOLS if tools is None else tools

    def answer(self, message: Message) -> None:
        if "method" not in message:
            self._take_answer(message)
            return
        request_id, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                self._result(
                    request_id,
                    {
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": {"name": "kit", "version": "1"},
                    },
                )
            case "tools/list":
                self._list(request_id, params.get("cursor"))
            case "tools/call":
                self._call(request_id, params)
            case "ping":
                self._result(request_id, {})
            case "notifications/cancelled":
                if params.get("requestId") in self._waiting:
                    del self._waiting[params["requestId"]]
                    self._cancelled += 1
            case _ if request_id is not None:
                self._error(request_id, -32601, "no such method")
            case _:
                pass

    def _list(self, request_id: Any, cursor: str | None) -> None:
        """List the tools in two pages."""
        if cursor is None:
            self._result(request_id, {"tools": self._tools[:4], "nextCursor": "rest"})
        else:
            self._result(request_id, {"tools": self._tools[4:]})

    def _call(self, request_id: Any, params: dict[str, Any]) -> None:
        arguments: Any = params.get("arguments")
        token = (params.get("_meta") or {}).get("progressToken")
        match params["name"]:
            case "add":
                total = arguments["a"] + arguments["b"]
                self._result(request_id, text_result(str(total), structuredContent={"sum": total}))
            case "env":
                self._result(request_id, text_result(",".join(sorted(os.environ))))
            case "fail":
                self._result(request_id, text_result("it failed", isError=True))
            case "image":
                image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
                self._result(request_id, {"content": [image]})
            case "rpc_error":
                self._error(request_id, -32000, "as asked")
            case "ask":
                self._asking = request_id
                for number, method in enumerate(REQUESTS):
                    self._send({"jsonrpc": "2.0", "id": f"q{number}", "method": method, "params": {}})
            case "echo":
                self._result(request_id, text_result(json.dumps(arguments)))
            case "pid":
                self._result(request_id, text_result(str(os.getpid())))
            case "big":
                self._result(request_id, text_result("x" * arguments["size"]))
            case "deep":
                value: Any = "bottom"
                for _ in range(arguments["depth"]):
                    value = {"a": value}
                self._result(request_id, text_result("deep", structuredContent=value))
            case "steps":
                for step in range(arguments["count"]):
                    self._progress(token, step + 1, arguments["count"], f"step {step + 1}")
                self._result(request_id, text_result("done"))
            case "wait":
                self._waiting[request_id] = None
                self._progress(token, 0, None, "waiting")
            case "slow":
                pass  # every caller times out before the tool answers
            case "release":
                for waiting in self._waiting:
                    self._result(waiting, text_result("released"))
                self._waiting.clear()
                self._result(request_id, text_result("ok"))
            case "cancelled":
                self._result(request_id, text_result(str(self._cancelled)))
            case "change_tools":
                self._tools = [{"name": "new", "description": "New.", "inputSchema": NOTHING}]
                self._send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                self._result(request_id, text_result("ok"))
            case "child":
                self._result(request_id, text_result(str(start_child().pid)))
            case "crash":
                os._exit(7)
            case "y__add":
                self._result(request_id, text_result("of y"))
            case "nested":
                self._result(request_id, text_result("nested"))
            case "odd_error":
                self._result(request_id, text_result("odd", isError="yes"))
            case "unreadable":
                self._send({"jsonrpc": "2.0", "id": request_id, "result": "not an object"})
            case _:
                self._error(request_id, -32602, "no such tool")

    def _take_answer(self, message: Message) -> None:
        self._answers[message["id"]] = message.get("result", (message.get("error") or {}).get("code"))
        if len(self._answers) == len(REQUESTS):
            said = {method: self._answers[f"q{number}"] for number, method in enumerate(REQUESTS)}
            self._result(self._asking, text_result(json.dumps(said)))

    def _progress(self, token: Any, done: int, total: int | None, message: str) -> None:
        if token is not None:
            params = {"progressToken": token, "progress": done, "message": message}
            if total is not None:
                params["total"] = total
            self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def _result(self, request_id: Any, result: dict[str, Any]) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def _error(self, request_id: Any, code: int, message: str) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})


def start_child() -> subprocess.Popen[bytes]:
    """Start a process in the same group that holds stdout, ignores SIGTERM and never ends."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    return subprocess.Popen([sys.executable, "-c", code, *sys.argv[2:]], stdin=subprocess.DEVNULL)


def send_line(message: Message) -> None:
    line = json.dumps(message).replace(json.dumps(NESTED), NESTED_JSON)
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def main(mode: str) -> None:
    if mode == "exit":
        sys.exit(3)
    if mode == "noisy":
        os.write(2, b"a line\n")
        for _ in range(10):
            sys.stderr.write("x" * 999_999 + "\n")
        sys.stderr.flush()
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "leaving":
        start_child()
    program = ToolServerProgram(send_line, ODD_TOOLS if mode == "odd" else None)
    for line in sys.stdin.buffer:
        if mode == "garbage":
            sys.stdout.buffer.write(
                b'\n\xff\xfe{\nDebug: hello\n{"jsonrpc": "2.0"}\n[1, 2]\n' + b"[" * 5000 + b"\n"
            )
        if mode != "mute":
            program.answer(json.loads(line))
    if mode == "stubborn":
        while True:
            signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
