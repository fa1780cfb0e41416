"""The table of tools, from which `tools/list`, the docs and the dispatcher are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import UNSET, Raw, Struct

from parley.errors import BadArguments
from parley.server.error_mapping import FAILED_VALUES, NO_ARGUMENTS, TEXT_FAULTS, Faults
from parley.server.hosts import Features
from parley.server.toolcall import ToolCall
from parley.wire.arguments import decode_call_arguments
from parley.wire.jsonrpc import is_null
from parley.wire.mcp import CallToolResult, ToolAnnotations, ToolDefinition
from parley.wire.schema import schema_of

__all__ = ["Tool", "ToolTable"]

Arguments = TypeVar("Arguments", bound=Struct)


class Tool(Generic[Arguments]):
    """One tool: its texts, its types, the shape of its failures, and its handler."""

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
        faults: Faults,
        annotations: ToolAnnotations,
        answers_approvals: bool = False,
        is_addition: bool = False,
    ) -> None:
        """Create a tool. `plain_args` are the arguments for clients at 2025-06-18 and older, if they differ.
        `is_addition`: such clients do not know the tool.
        """
        self.answers_approvals, self.is_addition = answers_approvals, is_addition
        self.name, self.title, self.description = name, title, description
        self.args, self.result, self.faults, self.annotations = args, result, faults, annotations
        self._plain_args = plain_args or args
        self._run = run

    def args_for(self, features: Features) -> type[Arguments]:
        """Return the type of the arguments for a client."""
        return self.args if features.additions else self._plain_args

    async def call(self, call: ToolCall) -> CallToolResult | None:
        """Run the handler; return None if it has answered itself.

        Raises:
            ParleyError: the tool failed; nothing was answered.
        """
        # Keep no reference to the arguments: they may be large, and the handler may take long.
        return await self._run(call, self._fitted(call))

    def _fitted(self, call: ToolCall) -> Arguments:
        arguments = call.take_arguments()
        if arguments is UNSET or is_null(arguments):
            if self.faults is Faults.CODEX:
                raise BadArguments(NO_ARGUMENTS, field="arguments")
            arguments = Raw(b"{}")
        return decode_call_arguments(self.args_for(call.features), arguments)


class ToolTable:
    """All tools, in the order in which clients see them."""

    def __init__(self, *tools: Tool[Any]) -> None:
        self._by_name = {tool.name: tool for tool in tools}
        self.definitions = cache(self._definitions)

    def get(self, name: str, features: Features) -> Tool[Any] | None:
        """Return the tool with this name; None if there is none, or the client is not offered it."""
        tool = self._by_name.get(name)
        return None if tool is None or (tool.is_addition and not features.additions) else tool

    def __iter__(self) -> Iterator[Tool[Any]]:
        return iter(self._by_name.values())

    def _definitions(self, features: Features) -> tuple[ToolDefinition, ...]:
        return tuple(
            ToolDefinition(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=schema_of(tool.args_for(features)),
                output_schema=_output_schema(tool) if features.additions else UNSET,
                annotations=tool.annotations if features.additions else UNSET,
            )
            for tool in self
            if (features.may_answer_approvals or not tool.answers_approvals)
            and (features.additions or not tool.is_addition)
        )


def _output_schema(tool: Tool[Any]) -> dict[str, Any]:
    """Return the schema of results and failures: some clients validate failures, too.

    The schemas of tools with text results have `properties` at the top level, where clients of the original server
    read them.
    """
    success, failed = schema_of(tool.result), schema_of(FAILED_VALUES[tool.faults])
    properties = {"properties": success["properties"]} if tool.faults in TEXT_FAULTS else {}
    return {"type": "object", **properties, "anyOf": [success, failed]}
