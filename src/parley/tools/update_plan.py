"""The `update_plan` tool: shows the model's plan to the user. The plan has no other effect."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from parley.conversation.records import CallItem
from parley.errors import BadArguments
from parley.ports.model import ToolSpec
from parley.ports.tools import ToolContext
from parley.tools.results import BAD_ARGUMENTS
from parley.wire.arguments import decode_arguments
from parley.wire.events import PlanStep, PlanUpdate
from parley.wire.jsonrpc import decode_lenient
from parley.wire.text import replace_surrogates

__all__ = ["UpdatePlan"]


class UpdatePlan:
    """Shows the model's plan, with the status of each step, to the user."""

    names: tuple[str, ...] = ("update_plan",)

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    def spec(self) -> ToolSpec | None:
        if not self._context.settings.include_plan_tool:
            return None
        return ToolSpec(name=self.names[0], description=_DESCRIPTION, parameters=_PARAMETERS)

    async def run(self, call: CallItem) -> str:
        try:
            plan = _plan(replace_surrogates(call.arguments).encode())
        except BadArguments as error:
            return BAD_ARGUMENTS + error.detail
        await self._context.transcript.append(PlanUpdate(explanation=plan.explanation, plan=plan.plan))
        return "Plan updated"


class _Plan(Struct, frozen=True, kw_only=True):
    explanation: str | None = None
    plan: tuple[PlanStep, ...]


_any_decoder: Final = msgspec.json.Decoder(dict[str, Any])


def _plan(arguments: bytes) -> _Plan:
    plan = decode_arguments(_Plan, arguments)
    given = decode_lenient(_any_decoder, arguments)
    _refuse_other_keys(given, _Plan)
    for step in given["plan"]:
        _refuse_other_keys(step, PlanStep)
    return plan


def _refuse_other_keys(given: dict[str, Any], kind: type[Struct]) -> None:
    for key in given:
        if key not in kind.__struct_fields__:
            expected = " or ".join(f"`{field}`" for field in kind.__struct_fields__)
            shown = key if len(key) <= 100 else key[:100] + "…"
            raise BadArguments(f"unknown field `{shown}`, expected {expected}", field=key)


_DESCRIPTION: Final = (
    "Show the user a plan: short steps in order, each with the status pending, in_progress or completed. Call this "
    "tool again when a step is done or the plan changes, always with all steps. Exactly one step is in_progress "
    "until all are completed. Explain in explanation why the plan changed. Small tasks need no plan."
)

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "explanation": {"type": "string"},
        "plan": {
            "type": "array",
            "description": "All steps, in order",
            "items": {
                "type": "object",
                "properties": {
                    "step": {"type": "string"},
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                },
                "required": ["step", "status"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["plan"],
    "additionalProperties": False,
}
