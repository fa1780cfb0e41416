"""Requests to write by hand, and the plain answer to one."""

from __future__ import annotations

from typing import Any

__all__ = ["initialize", "request", "result", "tool"]


def request(request_id: object, method: str, params: object = None) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def tool(request_id: object, name: str, arguments: object = None) -> dict[str, Any]:
    params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return request(request_id, "tools/call", params)


def initialize(request_id: object = 0, *, version: object = "2025-06-18") -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    return request(request_id, "initialize", params)


def result(request_id: object, value: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}
