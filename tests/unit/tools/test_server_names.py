"""The names of tool servers' tools in requests to a model."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.tools.servers.names import disambiguated_name, is_server_name, qualified_name


@pytest.mark.parametrize("name", ["x", "my-server", "A_1", "-"])
def test_letters_digits_dash_and_underscore_make_a_server_name(name: str) -> None:
    assert is_server_name(name)


@pytest.mark.parametrize("name", ["", "bad name", "a.b", "x\n", "é", "a/b"])
def test_anything_else_does_not(name: str) -> None:
    assert not is_server_name(name)


def test_the_offered_name_of_a_tool_begins_with_its_server() -> None:
    assert qualified_name("x", "add") == "x__add"


def test_a_name_of_sixty_four_characters_stays_whole() -> None:
    assert qualified_name("server", "t" * 56) == "server__" + "t" * 56


def test_a_longer_name_keeps_its_first_twenty_four_characters_and_gets_its_digest() -> None:
    whole = "server__" + "t" * 57

    assert qualified_name("server", "t" * 57) == "server__" + "t" * 16 + hashlib.sha1(whole.encode()).hexdigest()


def test_a_name_that_no_model_api_takes_is_made_one() -> None:
    assert qualified_name("x", "files.read") == "x__files_read" + hashlib.sha1(b"x__files.read").hexdigest()


@settings(deadline=None)
@given(tool=st.text(max_size=100))
def test_every_name_can_be_sent_to_a_model(tool: str) -> None:
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", qualified_name("x", tool))


@settings(deadline=None)
@given(tools=st.sets(st.text(max_size=80), min_size=2, max_size=8))
def test_two_tools_never_get_the_same_name(tools: set[str]) -> None:
    assert len({qualified_name("x", tool) for tool in tools}) == len(tools)


def test_pairs_that_would_be_called_the_same_have_disambiguated_names() -> None:
    assert qualified_name("a", "b__c") == qualified_name("a__b", "c") == "a__b__c"

    assert disambiguated_name("a__b", "c") == "a__b__c" + hashlib.sha1(b"a__b\0c").hexdigest()
    assert disambiguated_name("a", "b__c") == "a__b__c" + hashlib.sha1(b"a\0b__c").hexdigest()


words = st.text("ab_-", min_size=1, max_size=40)


@settings(deadline=None)
@given(pairs=st.sets(st.tuples(words, words | st.text(max_size=80)), min_size=2, max_size=8))
def test_disambiguated_names_are_as_many_as_pairs_and_can_be_sent(pairs: set[tuple[str, str]]) -> None:
    names = {disambiguated_name(server, tool) for server, tool in pairs}

    assert len(names) == len(pairs)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
