"""A turn that waits for an approval with settings that are no longer valid.

The turn can be interrupted, and continues when the settings are valid again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import last, open_approval_id, settle, types
from kit.servers.slow_store import SlowStore
from parley.config.errors import ProfileNotFound
from parley.config.types import SettingsOverrides
from parley.conversation.state import Phase
from parley.errors import UnknownConversation
from parley.runtime.conversation import Conversation
from parley.runtime.errors import TurnIsRunning
from parley.wire.principals import LOCAL

PROFILE = "[profiles.p]\nmodel = 'by-profile'\n"


def write_config(home: str, words: str) -> None:
    Path(home, "config.toml").write_text(words, encoding="utf-8")


@asynccontextmanager
async def left_without_its_profile(home: str) -> AsyncIterator[tuple[Life, Conversation]]:
    """Create a process that finds an orphaned turn whose profile was removed."""
    store = SlowStore()
    write_config(home, PROFILE)
    wanted = SettingsOverrides(cwd=home, approval_policy="untrusted", sandbox="danger-full-access", profile="p")
    async with Life(home, store) as first:
        left = await first.conversations.create(wanted)
        await first.send(left, "run a")
        await first.until(left, Phase.ASKING)
    write_config(home, "")
    async with Life(home, store) as second:
        yield second, await second.find(left.id)


@pytest.mark.promises("keeping.unusable")
@pytest.mark.parametrize("by", ["an answer", "an interrupt"])
async def test_it_can_be_ended_and_then_deleted(home: str, by: str) -> None:
    async with left_without_its_profile(home) as (life, found):
        with pytest.raises(TurnIsRunning):
            await life.conversations.delete(found.id)
        if by == "an answer":
            await settle(found, "abort")
        else:
            await found.interrupt_unfinished(principal=LOCAL)
        await life.until(found, Phase.IDLE)

        assert last(found, "turn_ended")["why"] == "interrupted"
        assert types(found, "question_settled", "turn_ended") == ["question_settled", "turn_ended"]
        await life.conversations.delete(found.id)
        with pytest.raises(UnknownConversation):
            await life.find(found.id)


@pytest.mark.promises("keeping.unusable")
async def test_it_can_be_renamed_and_continues_asking(home: str) -> None:
    async with left_without_its_profile(home) as (_, found):
        asked = open_approval_id(found)
        await found.rename("Foxes")

        assert (found.state.title, found.state.phase, open_approval_id(found)) == ("Foxes", Phase.ASKING, asked)


@pytest.mark.promises("keeping.unusable")
async def test_answers_fail_with_the_reason_until_the_settings_are_valid(home: str) -> None:
    async with left_without_its_profile(home) as (life, found):
        for decision in ("approved", "denied"):
            with pytest.raises(ProfileNotFound):
                await settle(found, decision)
        with pytest.raises(ProfileNotFound):
            await life.send(found, "say Hello")
        assert found.state.phase is Phase.ASKING

        write_config(home, PROFILE)
        await settle(found, "approved")
        await life.until(found, Phase.IDLE)

        assert (life.ran, last(found, "turn_ended")["why"]) == (["a"], "done")
        assert [one.model for one in life.settings] == ["by-profile"]
