"""Handles the MCP methods for tasks at protocol version 2025-11-25."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET

from parley.errors import ShuttingDown
from parley.ports.store import CALL_SECONDS, Query
from parley.runtime.deadline import Deadline
from parley.server.access import require_role
from parley.server.context import Role, ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.errors import TaskHasEnded
from parley.server.page_cursors import CONVERSATIONS, decode_cursor, encode_cursor
from parley.server.params import params_of, since_full_version
from parley.server.session import Session
from parley.server.task_calls import TaskFollower
from parley.server.tasks import TurnTask, find_task, last_task
from parley.wire.jsonrpc import encode
from parley.wire.principals import PrincipalRef
from parley.wire.tasks import (
    CancelTaskParams,
    GetTaskParams,
    ListTasksParams,
    ListTasksResult,
    Task,
    TaskResultParams,
)

__all__ = ["task_methods"]

LIST_LIMIT: Final = 20
"""The maximum number of conversations on one page of the list of tasks. The list contains the last task of each
conversation.
"""

_get_decoder: Final = msgspec.json.Decoder(GetTaskParams)
_result_decoder: Final = msgspec.json.Decoder(TaskResultParams)
_cancel_decoder: Final = msgspec.json.Decoder(CancelTaskParams)
_list_decoder: Final = msgspec.json.Decoder(ListTasksParams)


def task_methods(session: Session, server: ServerContext) -> Mapping[str, Handler]:
    """Return the handlers of the methods for tasks, by method, for one client."""

    async def get_task(call: Call) -> None:
        require_role(call.context.principal, Role.OBSERVER)
        task_id = params_of(_get_decoder, call).task_id
        task = await find_task(server.conversations, call.context.principal, task_id)
        call.answer(encode(await task.status()))

    async def task_result(call: Call) -> None:
        context = call.context
        require_role(context.principal, Role.OBSERVER)
        task = await find_task(server.conversations, context.principal, params_of(_result_decoder, call).task_id)
        call.stop_on_cancel()
        follower = TaskFollower(session, task, call.id, server_requests=context.reply.server_requests)
        if await task.end() is None:
            follower.start(task.conversation.log.durable)
        try:
            with call.waiting():
                entry = await task.wait_for_end()
            if entry is None:
                raise ShuttingDown
            result = task.with_task(await task.result(entry, context.features))
        finally:
            follower.close()
            call.finished()
        call.answer(encode(result))

    async def cancel_task(call: Call) -> None:
        principal = call.context.principal
        require_role(principal, Role.DRIVER)
        task = await find_task(server.conversations, principal, params_of(_cancel_decoder, call).task_id)
        if (entry := await task.end()) is not None:
            raise TaskHasEnded(task.ended(entry).status)
        call.answer(encode(await _cancelled(task, principal.ref)))

    async def list_tasks(call: Call) -> None:
        principal = call.context.principal
        require_role(principal, Role.OBSERVER)
        cursor = params_of(_list_decoder, call).cursor
        after = decode_cursor(cursor, CONVERSATIONS) if cursor else None
        found = await server.conversations.page(
            Query(conversation=principal.conversation, after=after, limit=LIST_LIMIT)
        )
        tasks: list[Task] = []
        for listed in found.items:
            conversation = await server.conversations.find_if_possible(listed.conversation_id)
            if conversation is not None and (task := await last_task(conversation)) is not None:
                tasks.append(await task.status())
        next_cursor = encode_cursor(found.items[-1].cursor) if found.more else UNSET
        call.answer(encode(ListTasksResult(tasks=tuple(tasks), next_cursor=next_cursor)))

    handlers = {
        GetTaskParams.METHOD: get_task,
        TaskResultParams.METHOD: task_result,
        CancelTaskParams.METHOD: cancel_task,
        ListTasksParams.METHOD: list_tasks,
    }
    return {method: since_full_version(method, handle) for method, handle in handlers.items()}


async def _cancelled(task: TurnTask, principal: PrincipalRef) -> Task:
    """Interrupt the turn of the task for `principal`. Wait up to `CALL_SECONDS` for the turn to end, and return the
    state of the task.
    """
    deadline = Deadline(CALL_SECONDS)
    await task.conversation.interrupt_turn(task.event_id, principal=principal, deadline=deadline)
    with suppress(TimeoutError):
        async with asyncio.timeout(CALL_SECONDS):
            await task.wait_for_end()
    return await task.status()
