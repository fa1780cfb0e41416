"""Approvals at protocol version 2026-07-28: a call ends with an approval request, and the client repeats the call
with the answer.

The approval request contains a signed state, and the client sends this state back with the repeated call. The state
contains all data that is needed to continue the call, so the server stores nothing between the two calls. The state
is valid for a limited time, and only for the same principal, tool and arguments.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.conversation.approvals import PendingApproval
from parley.errors import ApprovalIsSettled
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.errors import UnknownApproval
from parley.server.access import require_role
from parley.server.approval_text import decision_of, elicitation
from parley.server.context import Principal, Role
from parley.server.errors import InvalidParams
from parley.server.hosts import Features
from parley.server.signing import Signer
from parley.wire.elicitation import ElicitationParams, has_known_decision
from parley.wire.ids import START, ApprovalId, EventId, Seq
from parley.wire.jsonrpc import Message, decode_lenient, encode
from parley.wire.mcp import CallToolParams

__all__ = ["MAX_ROUNDS", "OnAsk", "RequestStates", "RoundElicitor", "RoundState", "Rounds"]

MAX_ROUNDS: Final = 9
"""The maximum number of approval requests for one call. The official client libraries stop repeating a call at the
tenth request.
"""
STATE_SECONDS: Final = 24 * 3600
"""The time in seconds within which an approval request can be answered by repeating the call."""
LONG_BYTES: Final = 64 * 1024
"""The size in bytes above which `_digest` hashes an argument in the form in which it was sent. Smaller arguments
are first decoded and encoded in a canonical form.
"""


class RoundState(Struct, frozen=True, array_like=True):
    """The state from which a call continues when the client repeats it with the answer to an approval request."""

    principal: str
    """The key of the principal that was asked to decide the approval (`Principal.key`)."""
    request: bytes
    """The digest of the name of the tool and of its arguments."""
    expires: float
    conversation: str
    seq: int
    """The position of the last entry that the client has received."""
    event_id: str
    approval: str
    rounds: int
    """The number of approval requests that the call has sent so far."""
    before: int
    """The position before the turn of a `codex` or `codex-reply` call; `START` for calls of other tools."""


_state_encoder: Final = msgspec.msgpack.Encoder()
_state_decoder: Final = msgspec.msgpack.Decoder(RoundState)
_any_decoder: Final = msgspec.json.Decoder()
_members_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_responses_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_canonical: Final = msgspec.json.Encoder(order="sorted")


class RequestStates:
    """Encodes the states of tool calls (`RoundState`) as signed strings, and decodes these strings."""

    def __init__(self, key: bytes, *, now: Callable[[], float] = time.time) -> None:
        self._signer, self.now = Signer(key, b"request state"), now

    def encode(self, state: RoundState) -> str:
        return self._signer.sign(_state_encoder.encode(state))

    def decode(self, text: str) -> RoundState | None:
        """Return the state in the signed string `text`; None if the signature is not valid or the state has
        expired.
        """
        if (content := self._signer.verify(text)) is None:
            return None
        try:
            state = _state_decoder.decode(content)
        except msgspec.DecodeError:
            return None
        return state if self.now() < state.expires else None


OnAsk = Callable[[PendingApproval, str], None]
"""A function that ends a call with an approval request. Its arguments are the approval and the id of the client's
first request that concerned the conversation.
"""


class RoundElicitor:
    """Asks the client to decide an approval by ending the open call with an approval request."""

    can_ask = True

    def __init__(self, on_ask: OnAsk) -> None:
        self._on_ask = on_ask

    def ask(
        self,
        conversation: Conversation,
        approval: PendingApproval,
        *,
        request: str,
        out: Outbox,
        task_id: str | None = None,
    ) -> None:
        self._on_ask(approval, request)

    def withdraw(self, conversation: Conversation, *, reason: str) -> None:
        pass  # an approval request ends its call, so no request stays open

    def close(self) -> None:
        pass


class Rounds:
    """Manages the approval requests for one tool call at protocol version 2026-07-28."""

    def __init__(
        self, states: RequestStates, params: CallToolParams, *, principal: Principal, features: Features
    ) -> None:
        """Create the object. If this call repeats an earlier call, read the state of the earlier call from
        `params`.

        `states` signs and verifies the states.

        Raises:
            InvalidParams: the state is forged, has expired, or belongs to another call.
        """
        self._states, self._principal, self._features = states, principal, features
        self._request = _digest(params.name, params.arguments)
        self._responses = _responses(params.input_responses)
        self.previous: RoundState | None = None
        """The state of the call that this call repeats; None for a first call."""
        if params.request_state is not UNSET and params.request_state is not None:
            text = params.request_state
            state = states.decode(text) if isinstance(text, str) else None
            if state is None or (state.principal, state.request) != (principal.key, self._request):
                raise InvalidParams("requestState is not valid for this request")
            self.previous = state

    async def settle(self, conversation: Conversation) -> None:
        """Settle the approval with the answer in the repeated call. If the call contains no valid answer, the
        approval stays open and the client is asked again. If the approval has already been settled, the answer is
        ignored.

        Raises:
            RoleTooLow: the role of the principal is too low.
            MayNotAnswer: the setting `[approvals] from` does not allow the principal to answer.
            StoreError: the answer could not be stored.
        """
        assert self.previous is not None
        require_role(self._principal, Role.APPROVER)
        answer = self._answer(self.previous.approval)
        if answer is None:
            return
        decision, reason = decision_of(answer, self._features)
        approval_id = ApprovalId(self.previous.approval)
        try:
            await conversation.approvals.answer(
                approval_id,
                decision,
                by="client",
                principal=self._principal.ref,
                reason=reason,
            )
        except (ApprovalIsSettled, UnknownApproval):
            pass

    def _answer(self, approval_id: str) -> Message | None:
        """Return the answer to the approval `approval_id` in the parameters of the call. Return None if there is no
        answer, or if the action or the decision in the answer is unknown.
        """
        if (given := self._responses.get(approval_id)) is None:
            return None
        answer = Message(result=given)
        return answer if has_known_decision(answer) else None

    def input_request(
        self,
        conversation: Conversation,
        approval: PendingApproval,
        *,
        seq: Seq,
        event_id: EventId,
        request: str,
        before: Seq = START,
    ) -> bytes | None:
        """Return the encoded result that asks for an approval; None if the call has reached `MAX_ROUNDS`.

        `seq` is the position of the last entry that the client has received, and `event_id` is the id of the turn.
        `request` is the id of the client's first request that concerned the conversation. `before` is the position
        before the turn, for a call that waits for the end of the turn.
        """
        rounds = 1 + (0 if self.previous is None else self.previous.rounds)
        if rounds > MAX_ROUNDS:
            return None
        asked = elicitation(
            approval,
            conversation.id,
            request=request,
            features=self._features,
            session_first=rounds == MAX_ROUNDS,
        )
        state = RoundState(
            principal=self._principal.key,
            request=self._request,
            expires=self._states.now() + STATE_SECONDS,
            conversation=conversation.id,
            seq=seq,
            event_id=event_id,
            approval=approval.approval_id,
            rounds=rounds,
            before=before,
        )
        conversation.approvals.await_retry(approval.approval_id)
        params: dict[str, object] = {
            "mode": "form",
            "message": asked.message,
            "requestedSchema": asked.requested_schema,
        }
        if asked.meta is not UNSET:
            params["_meta"] = asked.meta
        requests = {approval.approval_id: {"method": ElicitationParams.METHOD, "params": params}}
        return encode({"inputRequests": requests, "requestState": self._states.encode(state)})


def _digest(tool: str, arguments: Raw | UnsetType) -> bytes:
    """Return the digest of the name and the arguments of a tool call.

    The digest does not depend on the order of the members of JSON objects, except inside an argument of more than
    `LONG_BYTES` bytes. Such a long argument is not decoded, because decoding would take several times its size in
    memory.
    """
    digest = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        digest.update(b"%d:" % len(part))
        digest.update(part)

    add(tool.encode())
    given = b"{}" if isinstance(arguments, UnsetType) else arguments
    try:
        for name, value in sorted(decode_lenient(_members_decoder, given).items()):
            add(name.encode())
            add(memoryview(value) if len(memoryview(value)) > LONG_BYTES else _canonical_form(value))
    except msgspec.DecodeError:
        add(memoryview(given))
    return digest.digest()


def _canonical_form(value: Raw) -> bytes:
    try:
        return _canonical.encode(decode_lenient(_any_decoder, value))
    except (msgspec.DecodeError, RecursionError):
        return bytes(value)


def _responses(given: Any) -> dict[str, Raw]:
    if not isinstance(given, Raw):
        return {}
    try:
        return decode_lenient(_responses_decoder, given)
    except msgspec.DecodeError:
        return {}
