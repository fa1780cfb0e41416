"""Test tools for programs that use Parley: a scripted model, server processes, and validation of server messages.

If Parley is installed, every pytest run imports this package. Each name of the package is therefore imported only
when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from parley.testing.checks import check_message
    from parley.testing.model import ScriptedModel
    from parley.testing.process import ParleyProcess, RawParley
    from parley.testing.replies import Bulk, Cut, Failure, RawBody, Reply, Says
    from parley.testing.requests import RecordedRequest
    from parley.testing.steps import HOLD, Call, Data, Delay, Pieces, Reasoning, Step, Usage

__all__ = [
    "HOLD",
    "Bulk",
    "Call",
    "Cut",
    "Data",
    "Delay",
    "Failure",
    "ParleyProcess",
    "Pieces",
    "RawBody",
    "RawParley",
    "Reasoning",
    "RecordedRequest",
    "Reply",
    "Says",
    "ScriptedModel",
    "Step",
    "Usage",
    "check_message",
]

_HOMES: Final = {
    "checks": ("check_message",),
    "model": ("ScriptedModel",),
    "process": ("ParleyProcess", "RawParley"),
    "replies": ("Bulk", "Cut", "Failure", "RawBody", "Reply", "Says"),
    "requests": ("RecordedRequest",),
    "steps": ("HOLD", "Call", "Data", "Delay", "Pieces", "Reasoning", "Step", "Usage"),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"parley.testing.{module}"), name)
    raise AttributeError(f"module 'parley.testing' has no attribute {name!r}")
