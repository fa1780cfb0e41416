"""Defines tools and the table of tools.

The server uses the table of tools to respond to `tools/list` and to dispatch tool calls. The reference
documentation of the tools is generated from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import UNSET, Raw, Struct

from parley.errors import BadArguments
from parley.server.access import require_all_conversations, require_role
from parley.server.context import Principal, Role
from parley.server.error_mapping import FAILED_VALUES, NO_ARGUMENTS, TEXT_SHAPES, ErrorShape
from parley.server.hosts import Features
from parley.server.toolcall import ToolCall
from parley.wire.arguments import decode_call_arguments
from parley.wire.jsonrpc import is_null
from parley.wire.mcp import CallToolResult, ToolAnnotations, ToolDefinition, ToolExecution
from parley.wire.schema import schema_of

__all__ = ["Tool", "ToolTable"]

Arguments = TypeVar("Arguments", bound=Struct)


class Tool(Generic[Arguments]):
    """One tool: its title and description, the types of its arguments and results, the form of the result of a
    failed call, and its handler.
    """

    def __init__(
        self,
        name: str,
        *,
        title: str,
        description: str,
        args: type[Arguments],
        plain_args: type[Arguments] | None = None,
        result: type[Struct],
        run: Callable[[ToolCall, Arguments], Awaitable[CallToolResult | None]],
        error_shape: ErrorShape,
        annotations: ToolAnnotations,
        role: Role,
        answers_approvals: bool = False,
        is_addition: bool = False,
        creates_conversation: bool = False,
        can_be_task: bool = False,
        may_ask: bool = False,
        modern_result: type[Struct] | None = None,
    ) -> None:
        """Create a tool.

        `run` is the handler of the tool. `args` and `result` are the types of its arguments and of its result.
        `plain_args` is the type of the arguments for clients that do not get Parley's additions to the protocol
        (`Features.additions`); the default is `args`. `is_addition` is True if these clients do not get the tool at
        all. `role` is the lowest role that may call the tool. `creates_conversation` is True if the tool creates
        conversations. Principals that are bound to one conversation cannot call such a tool. `can_be_task` is True
        if the tool can run as a task. `answers_approvals` is True if the tool can answer approvals. Such a tool is
        offered only if `Features.may_answer_approvals` is True.

        `error_shape` is the form of the result of a failed call. `may_ask` is True if, at protocol version
        2026-07-28, a call can end with an approval request. `modern_result` is the type of the result at this
        version; the default is `result`.
        """
        self.role, self.creates_conversation = role, creates_conversation
        self.can_be_task = can_be_task
        self.may_ask = may_ask
        """True if, at protocol version 2026-07-28, a call of the tool can end with an approval request."""
        self.modern_result = modern_result or result
        """The type of the result at protocol version 2026-07-28; equal to `result` for most tools."""
        self.answers_approvals, self.is_addition = answers_approvals, is_addition
        self.name, self.title, self.description = name, title, description
        self.args, self.result, self.error_shape, self.annotations = args, result, error_shape, annotations
        self._plain_args = plain_args or args
        self._run = run

    def is_allowed(self, principal: Principal) -> bool:
        """Return whether the principal may call the tool. The role of the principal must be sufficient. If the tool
        creates conversations, the principal must also not be bound to one conversation.
        """
        return principal.role >= self.role and not (self.creates_conversation and principal.conversation)

    def args_for(self, features: Features) -> type[Arguments]:
        """Return the type of the arguments for a client with the given features."""
        return self.args if features.additions else self._plain_args

    async def call(self, call: ToolCall) -> CallToolResult | None:
        """Run the handler of the tool and return its result; None if the handler has already sent the response.

        Raises:
            ParleyError: the tool failed, and no response has been sent.
        """
        require_role(call.principal, self.role)
        if self.creates_conversation:
            require_all_conversations(call.principal)
        # Keep no reference to the arguments, because they may be large and the handler may run for a long time.
        return await self._run(call, self._fitted(call))

    def _fitted(self, call: ToolCall) -> Arguments:
        arguments = call.take_arguments()
        if arguments is UNSET or is_null(arguments):
            if self.error_shape is ErrorShape.CODEX:
                raise BadArguments(NO_ARGUMENTS, field="arguments")
            arguments = Raw(b"{}")
        return decode_call_arguments(self.args_for(call.features), arguments)


class ToolTable:
    """All tools, in the order in which clients see them."""

    def __init__(self, *tools: Tool[Any]) -> None:
        self._by_name = {tool.name: tool for tool in tools}
        self.definitions = cache(self._definitions)

    def get(self, name: str, features: Features) -> Tool[Any] | None:
        """Return the tool with the name `name`. Return None if there is no such tool, or if the tool is one of
        Parley's additions and the client does not get the additions.
        """
        tool = self._by_name.get(name)
        return None if tool is None or (tool.is_addition and not features.additions) else tool

    def definitions_for(self, principal: Principal, features: Features) -> tuple[ToolDefinition, ...]:
        """Return the definitions of the tools that are offered to a client with the given features, and that its
        principal may call.
        """
        offered = self.definitions(features)
        return tuple(one for one in offered if self._by_name[one.name].is_allowed(principal))

    def __iter__(self) -> Iterator[Tool[Any]]:
        return iter(self._by_name.values())

    def _definitions(self, features: Features) -> tuple[ToolDefinition, ...]:
        has_tasks = features.full_version and not features.modern
        return tuple(
            ToolDefinition(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=schema_of(tool.args_for(features)),
                output_schema=_output_schema(tool, features) if features.additions else UNSET,
                annotations=tool.annotations if features.additions else UNSET,
                execution=ToolExecution() if tool.can_be_task and has_tasks else UNSET,
            )
            for tool in self
            if (features.may_answer_approvals or not tool.answers_approvals)
            and (features.additions or not tool.is_addition)
        )


def _output_schema(tool: Tool[Any], features: Features) -> dict[str, Any]:
    """Return a JSON Schema that accepts the structured content of the results and of the failures of a tool.

    The schema includes failures, because some clients also validate failures. The schema of a tool with a text
    result has `properties` at the top level, because clients that were written for Codex read the properties there.
    """
    result = tool.modern_result if features.modern else tool.result
    success, failed = schema_of(result), schema_of(FAILED_VALUES[tool.error_shape])
    properties = {"properties": success["properties"]} if tool.error_shape in TEXT_SHAPES else {}
    return {"type": "object", **properties, "anyOf": [success, failed]}
