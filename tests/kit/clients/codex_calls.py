"""Raw `codex` calls, and the complete messages and model requests that must follow.

Messages are compared as a whole. A call gets pairs of notifications and then one answer; a model gets a body and
headers. The builders here create both from the values that differ.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack

import msgspec

from kit.builders.json import as_json
from kit.builders.tools import offered
from kit.clients.messages import APIS, EITHER_API, EVERY_API
from kit.clients.requests import initialize, request
from parley.agent.instructions import BASE_INSTRUCTIONS
from parley.testing import RawParley, RecordedRequest, ScriptedModel
from parley.testing.home import MODEL, ServerOptions
from parley.testing.render import Api
from parley.version import __version__
from parley.wire.events import EventMsg, TokenCount
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import PLAIN_VERSION

__all__ = [
    "APIS",
    "EITHER_API",
    "EVERY_API",
    "AskedFor",
    "Assistant",
    "CallSent",
    "Output",
    "User",
    "Wire",
    "answered",
    "body",
    "configured",
    "events_in",
    "failed",
    "history",
    "interrupted",
    "is_event",
    "pairs",
    "request_headers",
    "shown",
    "speaking",
    "without_delays",
    "without_message_ids",
]

_DELAY: Final = re.compile(r"retrying (\d+)/(\d+) in ([\d.]+)(ms|s)…$")
_USUAL_DELAY_SECONDS: Final = 0.2


# --- the client ------------------------------------------------------------------------------


class Wire:
    """An initialized server. The test chooses the ids of requests."""

    def __init__(self, raw: RawParley) -> None:
        self.raw, self.model = raw, raw.model
        self.calls_made = 0
        self.sessions: list[str] = []
        """The session id of each `codex` call, in the order of their `session_configured` events."""

    @property
    def work(self) -> Path:
        return self.raw.work

    def call(
        self, request_id: RequestId, tool: str, arguments: object, *, progress_token: RequestId | None = None
    ) -> None:
        self.calls_made += 1
        meta = {} if progress_token is None else {"_meta": {"progressToken": progress_token}}
        params = {"name": tool, "arguments": arguments, **meta}
        self.raw.send(request(request_id, "tools/call", params))

    def codex(self, request_id: RequestId, prompt: str, **arguments: Any) -> None:
        self.call(request_id, "codex", {"prompt": prompt, **arguments})

    def reply(self, request_id: RequestId, prompt: str, *, session: str | None = None) -> None:
        """Call `codex-reply`, by default for the latest session."""
        self.call(request_id, "codex-reply", {"sessionId": session or self.sessions[-1], "prompt": prompt})

    def send(self, request_id: RequestId, conversation: str, *texts: str) -> None:
        content = [{"type": "text", "text": text} for text in texts]
        self.call(request_id, "conversationSendMessage", {"conversation_id": conversation, "content": content})

    def stream(self, request_id: RequestId, conversation: str) -> None:
        self.call(request_id, "conversationStream", {"conversation_id": conversation})

    def cancel(self, request_id: RequestId) -> None:
        params = {"requestId": request_id}
        self.raw.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Return all messages up to and including the first that matches."""
        messages: list[Any] = []
        while not messages or not wanted(messages[-1]):
            messages.append(await self._next())
        return messages

    async def answer(self, *request_ids: RequestId) -> list[Any]:
        """Return all messages up to and including the last answer to these requests."""
        waiting = set(request_ids)

        def last(message: Any) -> bool:
            if "method" not in message:
                waiting.discard(message["id"])
            return not waiting

        return await self.until(last)

    async def text(self, request_id: RequestId) -> str:
        """Return the text of an answer."""
        return str((await self.answer(request_id))[-1]["result"]["content"][0]["text"])

    async def silence(self) -> list[Any]:
        """Send a ping, and return all messages before its answer: everything that the server has sent so far."""
        self.raw.send(request("silence?", "ping"))
        return (await self.answer("silence?"))[:-1]

    async def _next(self) -> Any:
        message = await self.raw.read_message()
        if message.get("method") == "session_configured":
            self.sessions.append(message["params"]["msg"]["session_id"])
        return message


@asynccontextmanager
async def speaking(
    model: ScriptedModel, *, version: str = PLAIN_VERSION, **options: Unpack[ServerOptions]
) -> AsyncIterator[Wire]:
    """Start a server for a client of this version."""
    async with RawParley(model, **options) as raw:
        raw.send(initialize("hello", version=version))
        await raw.read_message()
        raw.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield Wire(raw)


def is_event(kind: str) -> Callable[[Any], bool]:
    """Return whether a message is an event of this type: the second message of a `codex` pair, or one of a
    stream."""
    return lambda message: message.get("method") == kind


# --- messages of a call -------------------------------------------------------------------


def pairs(request_id: RequestId, event_id: str, *events: EventMsg | dict[str, Any]) -> list[Any]:
    """Build the notifications of these events for one call."""
    messages: list[Any] = []
    for event in events:
        msg = as_json(event)
        params = {"_meta": {"requestId": request_id}, "id": event_id, "msg": msg}
        messages += [
            {"jsonrpc": "2.0", "method": method, "params": params} for method in ("codex/event", msg["type"])
        ]
    return messages


def configured(request_id: RequestId, session: str, model: str = MODEL) -> list[Any]:
    msg: dict[str, Any] = {"type": "session_configured", "session_id": session, "model": model}
    msg |= {"history_log_id": 0, "history_entry_count": 0}
    return pairs(request_id, "0", msg)


def answered(request_id: RequestId, text: str, **more: Any) -> Any:
    """Build the answer to a call whose turn is done."""
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {"content": [{"type": "text", "text": text}], **more},
    }


def failed(request_id: RequestId, message: str, **more: Any) -> Any:
    """Build the answer to a call whose turn failed."""
    content = [{"type": "text", "text": message}]
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {"error": message, "content": content, "isError": True, **more},
    }


def interrupted(request_id: RequestId) -> Any:
    return failed(request_id, " Turn interrupted")


def shown(api: Api, *events: EventMsg) -> tuple[EventMsg, ...]:
    """Return these events as one API causes them: over Chat Completions, no token counts are requested."""
    return tuple(event for event in events if api != "chat" or not isinstance(event, TokenCount))


def without_delays(messages: Iterable[Any]) -> list[Any]:
    """Replace the delays in retry notices by `<delay>`, after checking that they are near the usual ones."""

    def cover(found: re.Match[str]) -> str:
        attempt, most, number, unit = found.groups()
        seconds = float(number) / 1000 if unit == "ms" else float(number)
        usual = float(_USUAL_DELAY_SECONDS * 2 ** (int(attempt) - 1))
        assert 0.9 * usual - 0.0001 <= seconds <= 1.1 * usual + 0.0001, found.group()  # shown with one decimal
        return f"retrying {attempt}/{most} in <delay>…"

    def covered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: covered(one) for key, one in value.items()}
        return _DELAY.sub(cover, value) if isinstance(value, str) else value

    return [covered(message) for message in messages]


def without_message_ids(messages: Iterable[Any]) -> list[Any]:
    """Replace message ids that the server generated by `m1`."""

    def covered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: "m1" if key == "message_id" else covered(one) for key, one in value.items()}
        return value

    return [covered(message) for message in messages]


# --- requests to the model ------------------------------------------------------------------


class User(NamedTuple):
    text: str


class Assistant(NamedTuple):
    text: str
    item_id: str | None = "msg_1"
    """The id of the item in the Responses API."""


class CallSent(NamedTuple):
    call_id: str
    name: str
    arguments: str
    item_id: str | None = "fc_1"
    same_response: bool = False
    """True if the call belongs to the same response as the call before it."""


class Output(NamedTuple):
    call_id: str
    text: str


AskedFor = User | Assistant | CallSent | Output


def history(api: Api, *items: AskedFor) -> list[Any]:
    """Build the history in the format of one API."""
    match api:
        case "chat":
            return _for_chat(*items)
        case "responses":
            return [_for_responses(item) for item in items]
        case "anthropic":
            return _for_anthropic(*items)


def _for_chat(*items: AskedFor) -> list[Any]:
    """Build chat messages: one for each response, with its text and all calls, then the outputs."""
    messages: list[dict[str, Any]] = []
    spoken: dict[str, Any] | None = None
    before: AskedFor | None = None
    for item in items:
        match item:
            case User(text=text):
                messages.append({"role": "user", "content": text})
            case Assistant(text=text):
                spoken = {"role": "assistant", "content": text}
                messages.append(spoken)
            case CallSent(call_id=call_id, name=name, arguments=arguments):
                made = [] if spoken is None else [one["id"] for one in spoken.get("tool_calls", ())]
                is_next = not item.same_response and not isinstance(before, Assistant)
                if spoken is None or is_next or call_id in made:
                    spoken = {"role": "assistant", "content": None}
                    messages.append(spoken)
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                spoken.setdefault("tool_calls", []).append(call)
            case Output(call_id=call_id, text=text):
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        before = item
    return messages


def _for_anthropic(*items: AskedFor) -> list[Any]:
    """Build messages whose roles alternate: one for each response, then one with the outputs and the next input."""
    messages: list[dict[str, Any]] = []

    def add(role: str, block: dict[str, Any]) -> None:
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": []})
        messages[-1]["content"].append(block)

    results: list[dict[str, Any]] = []
    for item in items:
        is_next = (isinstance(item, CallSent) and not item.same_response) or isinstance(item, User | Assistant)
        if is_next:
            for result in results:
                add("user", result)
            results.clear()
        match item:
            case User(text=text):
                if text:  # the API refuses an empty text
                    add("user", {"type": "text", "text": text})
            case Assistant(text=text):
                add("assistant", {"type": "text", "text": text})
            case CallSent(call_id=call_id, name=name, arguments=arguments):
                value = _input_of(arguments)
                add("assistant", {"type": "tool_use", "id": call_id, "name": name, "input": value})
            case Output(call_id=call_id, text=text):
                results.append({"type": "tool_result", "tool_use_id": call_id, "content": text})
    for result in results:
        add("user", result)
    return messages


def _input_of(arguments: str) -> Any:
    """Return the input of a call, which must be an object."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _for_responses(item: AskedFor) -> dict[str, Any]:
    match item:
        case User(text=text):
            content = [{"type": "input_text", "text": text}]
            return {"type": "message", "id": None, "role": "user", "content": content}
        case Assistant(text=text, item_id=item_id):
            content = [{"type": "output_text", "text": text}]
            return {"type": "message", "id": item_id, "role": "assistant", "content": content}
        case CallSent(call_id=call_id, name=name, arguments=arguments, item_id=item_id):
            call = {"type": "function_call", "id": item_id, "call_id": call_id}
            return {**call, "name": name, "arguments": arguments}
        case Output(call_id=call_id, text=text):
            return {"type": "function_call_output", "call_id": call_id, "output": text}


def body(
    api: Api,
    *items: AskedFor,
    cwd: Path,
    session: str,
    notes: str | None = None,
    model: str = MODEL,
    instructions: str = BASE_INSTRUCTIONS,
    **changes: Any,
) -> Any:
    """Build the whole body of a request; `changes` are members that differ from the defaults."""
    context = [User(_environment(cwd))]
    if notes is not None:
        context.append(User(f"<user_instructions>\n\n{notes}\n\n</user_instructions>"))
    said = history(api, *context, *items)
    if api == "anthropic":
        return {
            "model": model,
            "max_tokens": 32_000,
            "system": instructions,
            "messages": said,
            "tools": offered(api),
            "stream": True,
            "cache_control": {"type": "ephemeral"},
            **changes,
        }
    if api == "chat":
        messages = [{"role": "system", "content": instructions}, *said]
        return {"model": model, "messages": messages, "stream": True, "tools": offered(api), **changes}
    return {
        "model": model,
        "instructions": instructions,
        "input": said,
        "tools": offered(api),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": True,
        "stream": True,
        "include": [],
        "prompt_cache_key": session,
        **changes,
    }


def _environment(cwd: Path) -> str:
    return (
        f"<environment_context>\n\nCurrent working directory: {cwd}\nApproval policy: never\n"
        "Sandbox policy: danger-full-access\nNetwork access: enabled\n\n\n</environment_context>"
    )


def request_headers(api: Api, request: RecordedRequest, *, model: ScriptedModel, session: str) -> dict[str, str]:
    """Return all headers of a request to a provider without a key."""
    headers = {
        "accept": "text/event-stream",
        "accept-encoding": "gzip, deflate",
        "content-length": str(len(request.raw)),
        "content-type": "application/json",
        "host": model.base_url.removeprefix("http://").removesuffix("/v1"),
        "user-agent": f"parley/{__version__}",
    }
    if api == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    if api == "responses":
        headers |= {"openai-beta": "responses=experimental", "originator": "codex_cli_rs", "session_id": session}
    return headers


def events_in(messages: Sequence[Any]) -> list[Any]:
    """Return the events of a call, without duplicates."""
    return [one["params"]["msg"] for one in messages if one.get("method") == "codex/event"]
