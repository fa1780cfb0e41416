"""Tasks at protocol version 2026-07-28, in which tasks are an extension of the protocol. The state of a task
contains its open approval request or its result.

The client declares the extension in each request. The client polls the task until the task has ended, and answers
the approval requests of the task with `tasks/update`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.conversation.approvals import PendingApproval
from parley.errors import ApprovalIsSettled
from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation
from parley.runtime.deadline import Deadline
from parley.runtime.errors import UnknownApproval
from parley.server.access import may_call_approval_answer, require_role
from parley.server.approval_text import decision_of, elicitation
from parley.server.context import RequestContext, Role, ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.errors import MissingCapability
from parley.server.modern.requests import can_be_asked
from parley.server.params import params_of, since_full_version
from parley.server.tasks import TurnTask, find_task
from parley.wire.elicitation import ElicitationParams, has_known_decision
from parley.wire.ids import ApprovalId
from parley.wire.jsonrpc import Message, RequestId, encode
from parley.wire.modern import TASKS_EXTENSION
from parley.wire.tasks import CancelTaskParams, GetTaskParams, ModernTask, Task, UpdateTaskParams

__all__ = ["created_task", "modern_task_methods", "wants_tasks"]

_get_decoder: Final = msgspec.json.Decoder(GetTaskParams)
_update_decoder: Final = msgspec.json.Decoder(UpdateTaskParams)
_cancel_decoder: Final = msgspec.json.Decoder(CancelTaskParams)


def wants_tasks(context: RequestContext) -> bool:
    """Return whether the client declares the extension for tasks in the request of `context`."""
    return context.meta is not None and context.meta.capabilities.has_extension(TASKS_EXTENSION)


def created_task(task: TurnTask) -> bytes:
    """Encode the task as the result of the tool call that has created it."""
    return encode(_modern(task.running("working", task.created_at)))


def modern_task_methods(server: ServerContext) -> Mapping[str, Handler]:
    """Return the handlers of the methods for tasks at protocol version 2026-07-28, by method."""

    async def find(context: RequestContext, task_id: str, role: Role) -> TurnTask:
        if not wants_tasks(context):
            raise MissingCapability("extensions", TASKS_EXTENSION)
        require_role(context.principal, role)
        return await find_task(server.conversations, context.principal, task_id)

    async def get_task(call: Call) -> None:
        context = call.context
        task = await find(context, params_of(_get_decoder, call).task_id, Role.OBSERVER)
        approval, may_answer = task.conversation.approvals.open, may_call_approval_answer
        if can_be_asked(context, approval) or may_answer(context.principal, context.features, approval):
            task.conversation.approvals.note_poll(can_answer=True)
        call.answer(encode(await _with_details(task, context, call.id)))

    async def update_task(call: Call) -> None:
        params = params_of(_update_decoder, call)
        task = await find(call.context, params.task_id, Role.APPROVER)
        for approval_id, given in params.input_responses.items():
            await _answer(task.conversation, ApprovalId(approval_id), Message(result=given), call.context)
        call.answer(b"{}")

    async def cancel_task(call: Call) -> None:
        task = await find(call.context, params_of(_cancel_decoder, call).task_id, Role.DRIVER)
        if await task.end() is None:
            principal, deadline = call.context.principal.ref, Deadline(CALL_SECONDS)
            await task.conversation.interrupt_turn(task.event_id, principal=principal, deadline=deadline)
        call.answer(b"{}")

    handlers = {
        GetTaskParams.METHOD: get_task,
        UpdateTaskParams.METHOD: update_task,
        CancelTaskParams.METHOD: cancel_task,
    }
    return {method: since_full_version(method, handle) for method, handle in handlers.items()}


def _modern(task: Task, **details: Raw | dict[str, Raw] | UnsetType) -> ModernTask:
    return ModernTask(
        task_id=task.task_id,
        status=task.status,
        status_message=task.status_message,
        created_at=task.created_at,
        last_updated_at=task.last_updated_at,
        poll_interval_ms=task.poll_interval,
        **details,  # type: ignore[arg-type]  # the names are those of the fields
    )


async def _with_details(task: TurnTask, context: RequestContext, request: RequestId) -> ModernTask:
    """Return the state of the task. If the task has ended, the state contains the result. If the task is waiting
    for an approval that the client can be asked to decide, the state contains the approval request. `request` is
    the request id that the approval request contains.
    """
    entry = await task.end()
    if entry is None:
        status, approval = await task.status(), task.conversation.approvals.open
        asks = status.status == "input_required"
        if asks and approval is not None and can_be_asked(context, approval):
            return _modern(
                status, input_requests={approval.approval_id: _input_request(task, approval, context, request)}
            )
        return _modern(status, input_requests={} if asks else UNSET)
    ended = task.ended(entry)
    if ended.status == "cancelled":
        return _modern(ended)
    # A call that returned an error also has a result. The status `failed` is for calls without a result.
    ended = msgspec.structs.replace(ended, status="completed")
    return _modern(ended, result=Raw(encode(await task.result(entry, context.features))))


def _input_request(task: TurnTask, approval: PendingApproval, context: RequestContext, request: RequestId) -> Raw:
    asked = elicitation(
        approval, task.conversation.id, request=str(request), features=context.features, task_id=task.id
    )
    params = {
        "_meta": asked.meta,
        "mode": "form",
        "message": asked.message,
        "requestedSchema": asked.requested_schema,
    }
    return Raw(encode({"method": ElicitationParams.METHOD, "params": params}))


async def _answer(
    conversation: Conversation, approval_id: ApprovalId, answer: Message, context: RequestContext
) -> None:
    """Settle the open approval `approval_id` of the conversation with `answer`.

    Do nothing if another approval is open, or if the action or the decision in the answer is unknown.
    """
    approval = conversation.approvals.open
    if approval is None or approval.approval_id != approval_id or not has_known_decision(answer):
        return
    decision, reason = decision_of(answer, context.features)
    with suppress(ApprovalIsSettled, UnknownApproval):
        await conversation.approvals.answer(
            approval_id,
            decision,
            by="client",
            principal=context.principal.ref,
            reason=reason,
        )
