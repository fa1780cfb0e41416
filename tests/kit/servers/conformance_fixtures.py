"""The tools, resources and prompts that the official conformance suite requires of every server.

The handlers here answer names that begin with `test_` and addresses that begin with `test://`. They pass all other
requests to the server's own handlers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import UNSET

from parley.server.dispatch import Call, Handler
from parley.server.errors import InvalidParams, MissingCapability
from parley.server.session import Session
from parley.wire.jsonrpc import Message, encode, error_of, notification

__all__ = ["with_fixtures"]

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
WAV: Final = base64.b64encode(
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\0\0\0\0"
)
IMAGE: Final = {"type": "image", "data": PNG, "mimeType": "image/png"}
KEY: Final = b"a key for tests"
OPTIONS: Final = ["option1", "option2", "option3"]
TITLED: Final = [{"const": f"value{one}", "title": f"Option {one}"} for one in (1, 2, 3)]


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def embedded(uri: str, mime: str, said: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": said}}


def form(message: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(question: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": {"type": "text", "text": question}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 100}}


STRING: Final = {"type": "string"}
ROOTS: Final = {"method": "roots/list", "params": {}}
NAME: Final = form("What is your name?", name=STRING)

STATIC: Final[Mapping[str, dict[str, Any]]] = {
    "test_simple_text": text("This is a simple text response for testing."),
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [{"type": "audio", "data": WAV.decode(), "mimeType": "audio/wav"}]},
    "test_embedded_resource": {
        "content": [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]
    },
    "test_multiple_content_types": {
        "content": [
            {"type": "text", "text": "Multiple content types test:"},
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    },
    "test_logging_tool": text("done"),
    "test_error_handling": text("This tool intentionally returns an error for testing", isError=True),
}

ASKS: Final[Mapping[str, tuple[dict[str, Any], bool]]] = {
    "test_streaming_elicitation": ({"user_name": NAME}, False),
    "test_input_required_result_elicitation": ({"user_name": NAME}, False),
    "test_input_required_result_sampling": (
        {"capital_question": sampling("What is the capital of France?")},
        False,
    ),
    "test_input_required_result_list_roots": ({"client_roots": ROOTS}, False),
    "test_input_required_result_request_state": ({"confirm": form("Confirm", ok={"type": "boolean"})}, True),
    "test_input_required_result_multiple_inputs": (
        {"user_name": NAME, "greeting": sampling("Generate a greeting"), "client_roots": ROOTS},
        True,
    ),
    "test_input_required_result_tampered_state": ({"confirm": form("Confirm", ok={"type": "boolean"})}, True),
    "test_input_required_result_capabilities": (
        {"user_name": NAME, "greeting": sampling("Generate a greeting")},
        False,
    ),
}
"""The requests to the client, and whether there is a state, keyed by tool."""

NEEDS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

FORMS: Final[Mapping[str, dict[str, Any]]] = {
    "test_elicitation": {"username": STRING, "email": STRING},
    "test_elicitation_sep1034_defaults": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
    "test_elicitation_sep1330_enums": {
        "untitledSingle": {"type": "string", "enum": OPTIONS},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}

PROMPTS: Final[Mapping[str, Callable[[dict[str, Any]], list[Any]]]] = {
    "test_simple_prompt": lambda given: [{"type": "text", "text": "This is a simple prompt for testing."}],
    "test_prompt_with_arguments": lambda given: [
        {
            "type": "text",
            "text": f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'",
        }
    ],
    "test_prompt_with_embedded_resource": lambda given: [
        embedded(str(given.get("resourceUri")), "text/plain", "Embedded resource content for testing."),
        {"type": "text", "text": "Please process the embedded resource above."},
    ],
    "test_prompt_with_image": lambda given: [IMAGE, {"type": "text", "text": "Please analyze the image above."}],
}

OWN_TOOLS: Final = (
    *STATIC,
    *ASKS,
    *FORMS,
    "test_missing_capability",
    "test_sampling",
    "test_tool_with_logging",
    "test_tool_with_progress",
    "test_input_required_result_multi_round",
)


def signed(state: str) -> str:
    return f"{state}.{hmac.new(KEY, state.encode(), hashlib.sha256).hexdigest()}"


def opened(state: Any) -> str:
    """Return the content of a state that `signed` made."""
    content = str(state).partition(".")[0]
    if state != signed(content):
        raise InvalidParams("requestState is not valid")
    return content


def question(asked: dict[str, Any], state: str | None = None) -> dict[str, Any]:
    return {"inputRequests": asked, **({} if state is None else {"requestState": signed(state)})}


async def ask_client(session: Session, call: Call, method: str, params: Any) -> Any:
    """Send a request to the client, as earlier versions allow, and return its result."""
    answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    session.requests.send(
        method, encode(params), out=call.context.reply.server_requests, answered=answered.set_result
    )
    answer = await answered
    if error_of(answer) is not None or answer.result is UNSET:
        return {}
    return json.loads(bytes(answer.result))


class Fixtures:
    """The handlers of one client."""

    def __init__(self, session: Session, handlers: Mapping[str, Handler]) -> None:
        self._session, self._handlers = session, handlers

    def all(self) -> dict[str, Handler]:
        return {
            **self._handlers,
            "tools/list": self._listing("tools/list", "tools", _definitions()),
            "tools/call": self._for("tools/call", "name", self._call),
            "prompts/list": self._listing(
                "prompts/list",
                "prompts",
                [{"name": name, "description": "A prompt of the conformance suite."} for name in PROMPTS],
            ),
            "prompts/get": self._for("prompts/get", "name", self._prompt),
            "resources/read": self._for("resources/read", "uri", self._read),
            "resources/subscribe": self._for("resources/subscribe", "uri", self._nothing),
            "resources/unsubscribe": self._for("resources/unsubscribe", "uri", self._nothing),
            "completion/complete": self._complete,
        }

    def _listing(self, method: str, member: str, more: list[Any]) -> Handler:
        async def listed(call: Call) -> None:
            answer = call.answer

            def add(result: bytes, result_type: Any = "complete") -> None:
                found = json.loads(result)
                answer(encode({**found, member: [*found[member], *more]}), result_type)

            setattr(call, "answer", add)  # noqa: B010 - the type checker forbids the assignment
            await self._handlers[method](call)

        return listed

    def _for(self, method: str, member: str, own: Callable[[Call, Any], Awaitable[None]]) -> Handler:
        async def handle(call: Call) -> None:
            params = {} if call.params is UNSET else json.loads(bytes(call.params))
            if str(params.get(member, "")).startswith(("test_", "test://")):
                await own(call, params)
            else:
                await self._handlers[method](call)

        return handle

    async def _call(self, call: Call, params: Any) -> None:
        name, meta = params["name"], params.get("_meta") or {}
        declared = meta.get("io.modelcontextprotocol/clientCapabilities", {})
        responses = params.get("inputResponses")
        notifications = call.context.reply.notifications
        if name in STATIC:
            call.answer(encode(STATIC[name]))
        elif name == "test_missing_capability":
            if "sampling" not in declared:
                raise MissingCapability("sampling")
            call.answer(encode(text("done")))
        elif name == "test_tool_with_progress":
            for progress in (0, 50, 100):
                sent = {"progressToken": meta.get("progressToken"), "progress": progress, "total": 100}
                notifications.send(notification("notifications/progress", encode(sent)))
                await asyncio.sleep(0.05)
            call.answer(encode(text("done")))
        elif name == "test_tool_with_logging":
            for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
                notifications.send(notification("notifications/message", encode({"level": "info", "data": said})))
                await asyncio.sleep(0.05)
            call.answer(encode(text("done")))
        elif name == "test_sampling":
            asked = sampling(params["arguments"]["prompt"])
            answer = await ask_client(self._session, call, asked["method"], asked["params"])
            call.answer(encode(text(f"LLM response: {answer.get('content', {}).get('text')}")))
        elif name in FORMS:
            asked = form(params.get("arguments", {}).get("message", "Please fill in"), **FORMS[name])
            answer = await ask_client(self._session, call, asked["method"], asked["params"])
            said = f"action={answer.get('action')}, content={json.dumps(answer.get('content'))}"
            call.answer(encode(text(f"Elicitation completed: {said}")))
        elif name == "test_input_required_result_multi_round":
            self._next_round(call, params, responses)
        elif name in ASKS:
            self._ask(call, params, declared, responses)
        else:
            raise InvalidParams(f"no fixture {name}")

    def _ask(self, call: Call, params: Any, declared: Any, responses: Any) -> None:
        asked, has_state = ASKS[params["name"]]
        if params["name"] == "test_input_required_result_capabilities":
            asked = {key: one for key, one in asked.items() if NEEDS[one["method"]] in declared}
        if "requestState" in params:
            opened(params["requestState"])
        given = responses if isinstance(responses, dict) else {}
        if all(isinstance(given.get(key), dict) and given[key] for key in asked) and (
            not has_state or "requestState" in params
        ):
            call.answer(encode(text(f"state-ok {json.dumps({key: given[key] for key in asked})}")))
        else:
            call.answer(encode(question(asked, "asked" if has_state else None)), "input_required")

    def _next_round(self, call: Call, params: Any, responses: Any) -> None:
        state = opened(params["requestState"]) if "requestState" in params else ""
        given = responses if isinstance(responses, dict) else {}
        if state == "two" and "step2" in given:
            call.answer(encode(text("done")))
        elif state and "step1" in given:
            step = form("Step 2: What is your favorite color?", color=STRING)
            call.answer(encode(question({"step2": step}, "two")), "input_required")
        else:
            step = form("Step 1: What is your name?", name=STRING)
            call.answer(encode(question({"step1": step}, "one")), "input_required")

    async def _prompt(self, call: Call, params: Any) -> None:
        if params["name"] == "test_input_required_result_prompt":
            given = params.get("inputResponses")
            if not isinstance(given, dict) or "user_context" not in given:
                asked = form("What context should the prompt use?", context=STRING)
                call.answer(encode(question({"user_context": asked})), "input_required")
                return
            contents = [{"type": "text", "text": json.dumps(given["user_context"])}]
        else:
            contents = PROMPTS[params["name"]](params.get("arguments") or {})
        call.answer(encode({"messages": [{"role": "user", "content": one} for one in contents]}))

    async def _read(self, call: Call, params: Any) -> None:
        uri = params["uri"]
        content: dict[str, str] = {"uri": uri, "mimeType": "text/plain"}
        if uri == "test://static-binary":
            content |= {"mimeType": "image/png", "blob": PNG}
        elif uri.startswith("test://template/"):
            number = uri.split("/")[3]
            data = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
            content |= {"mimeType": "application/json", "text": json.dumps(data)}
        elif uri == "test://static-text":
            content |= {"text": "This is the content of the static text resource."}
        else:
            await self._handlers["resources/read"](call)
            return
        call.answer(encode({"contents": [content]}))

    async def _nothing(self, call: Call, params: Any) -> None:
        call.answer(b"{}")

    async def _complete(self, call: Call) -> None:
        params = {} if call.params is UNSET else json.loads(bytes(call.params))
        if not str(params.get("ref", {}).get("name", "")).startswith("test_"):
            await self._handlers["completion/complete"](call)
            return
        call.answer(encode({"completion": {"values": [], "hasMore": False}}))


def _definitions() -> list[Any]:
    return [
        {"name": name, "description": "A tool of the conformance suite.", "inputSchema": {"type": "object"}}
        for name in OWN_TOOLS
    ]


def with_fixtures(session: Session, handlers: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Return handlers that answer requests for the fixtures, and pass all other requests on."""
    return Fixtures(session, handlers).all()
