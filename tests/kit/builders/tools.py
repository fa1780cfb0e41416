"""Builds the tools of a request, in the format of each API."""

from __future__ import annotations

from typing import Any, cast

from kit.models.raw_provider import settings
from parley.config.types import Settings
from parley.ports.commands import Command, CommandResult, Output, SandboxPolicy
from parley.ports.tools import Action, RejectedByPolicy, ToolContext, Verdict
from parley.ports.transcript import Transcript
from parley.testing.render import Api
from parley.tools import OpenTools, own_tools

__all__ = ["NoCommands", "offered"]


class NoCommands:
    """A command runner that runs nothing."""

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        raise AssertionError(f"{command} must not run")

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        raise AssertionError("no thread and no command may be confined")

    async def unrestored(self, policy: SandboxPolicy) -> tuple[str, ...]:
        return ()

    def confine_thread(self, policy: SandboxPolicy) -> bool:
        raise AssertionError("no thread and no command may be confined")


async def _authorize(action: Action) -> Verdict:
    return RejectedByPolicy(why="nothing may be done here")


def offered(api: Api, chosen: Settings | None = None) -> list[Any]:
    """Return the `tools` of a request: Parley's own tools, by default with the settings of the tests."""
    chosen = chosen or settings(approval_policy="never", sandbox_mode="danger-full-access")
    context = ToolContext(settings=chosen, transcript=cast(Transcript, None), authorize=_authorize)
    functions = [
        {"name": spec.name, "description": spec.description, "strict": False, "parameters": spec.parameters}
        for spec in OpenTools(own_tools(context, NoCommands()), None).specs()
    ]
    if api == "anthropic":
        names = {"name": "name", "description": "description", "input_schema": "parameters"}
        return [{name: function[ours] for name, ours in names.items()} for function in functions]
    if api == "chat":
        return [{"type": "function", "function": function} for function in functions]
    return [{"type": "function", **function} for function in functions]
