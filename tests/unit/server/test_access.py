"""The actions and the conversations that a principal has access to."""

from __future__ import annotations

import pytest

from parley.errors import UnknownConversation
from parley.server.access import may_see, require_conversation, require_role
from parley.server.context import LOCAL_USER, Principal, Role
from parley.server.errors import RoleTooLow
from parley.server.tools import TOOLS
from parley.wire.ids import ConversationId
from parley.wire.principals import LOCAL

MINE, OTHER = ConversationId("a" * 36), ConversationId("b" * 36)
BOUND = Principal(name="guest", role=Role.DRIVER, conversation=MINE)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", Role)
def test_a_role_allows_itself_and_everything_lower(role: Role, needed: Role) -> None:
    principal = Principal(name="guest", role=role)
    if role >= needed:
        require_role(principal, needed)
    else:
        with pytest.raises(RoleTooLow, match=f"needs the role {needed.label}; guest has the role {role.label}"):
            require_role(principal, needed)


def test_a_principal_that_is_bound_to_a_conversation_sees_no_other() -> None:
    assert may_see(BOUND, MINE)
    assert not may_see(BOUND, OTHER)
    require_conversation(BOUND, MINE)
    with pytest.raises(UnknownConversation):
        require_conversation(BOUND, OTHER)


def test_the_local_user_sees_and_may_do_everything() -> None:
    require_role(LOCAL_USER, Role.ADMIN)
    assert LOCAL_USER.ref == LOCAL
    assert may_see(LOCAL_USER, OTHER)


def test_read_only_tools_need_an_observer_and_all_others_a_higher_role() -> None:
    for tool in TOOLS:
        changes_own_mark = tool.name == "conversationMarkRead"
        allows_observers = tool.role is Role.OBSERVER
        assert allows_observers is (tool.annotations.read_only_hint or changes_own_mark), tool.name


def test_a_principal_without_a_stored_token_keeps_its_marks_when_the_server_restarts() -> None:
    own = [Principal(name="serve", role=Role.ADMIN, token_id=token_id) for token_id in ("a", "b")]
    tokens = [Principal(name="phone", role=Role.OBSERVER, token_id=one, since=2.0) for one in ("a", "b")]

    assert [one.identity for one in (LOCAL_USER, *own, *tokens)] == ["local", "serve", "serve", "a", "b"]
    assert [one.viewer.since for one in (LOCAL_USER, tokens[0])] == [0.0, 2.0]
