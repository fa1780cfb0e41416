"""What a model is offered, as each API writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kit.model_peer import settings
from parley.config.types import Settings
from parley.ports.commands import Command, Ended
from parley.ports.tools import Action, Desk, Refused, Verdict
from parley.ports.transcript import Transcript
from parley.testing.render import Api
from parley.tools import TurnHands, own_tools
from parley.wire.events import OutputStream

__all__ = ["offered"]


class _NoCommands:
    async def run(self, command: Command, *, output: Callable[[OutputStream, bytes], None]) -> Ended:
        raise AssertionError(f"{command} must not run")


async def _permit(action: Action) -> Verdict:
    return Refused(why="nothing may be done here")


def offered(api: Api, chosen: Settings | None = None) -> list[Any]:
    """The `tools` of a request: Parley's own, under the settings of the tests unless others are given."""
    chosen = chosen or settings(approval_policy="never", sandbox_mode="danger-full-access")
    desk = Desk(settings=chosen, transcript=cast(Transcript, None), permit=_permit)
    functions = [
        {"name": spec.name, "description": spec.description, "strict": False, "parameters": spec.parameters}
        for spec in TurnHands(own_tools(desk, _NoCommands(), {}), None).specs()
    ]
    if api == "chat":
        return [{"type": "function", "function": function} for function in functions]
    return [{"type": "function", **function} for function in functions]
