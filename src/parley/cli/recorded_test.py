"""`parley replay --as-test`: writes a recorded conversation as a pytest test."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from parley.cli.ids import is_complete, match_conversation
from parley.cli.runner import CommandFailed
from parley.cli.settings import settings_loader
from parley.common.os_errors import os_detail
from parley.config.types import SettingsOverrides
from parley.errors import ConfigError, UnknownConversation
from parley.wire.text import quoted

if TYPE_CHECKING:
    from parley.app.recorded_test import Reply

__all__ = ["write_test"]


def write_test(given: str, output: str | None) -> int:
    """Write a pytest test to the file `output`, or to stdout if `output` is None, and return the exit code. `given`
    is the path of a recording, the id of a conversation, or a unique prefix of this id.

    Raises:
        CommandFailed: the conversation does not exist, the model has not replied in the conversation, or the output
            file exists or cannot be written.
        ModelError: the file `given` is not a recording.
    """
    from parley.app.recorded_test import as_tests, replies_in_recording

    is_file = os.path.lexists(given)
    conversations = replies_in_recording(given) if is_file else [asyncio.run(_replies_in_home(given))]
    if not any(conversations):
        raise CommandFailed(f"the model has not replied in {quoted(given)}, so there is nothing to test")
    text = as_tests(conversations)
    if output is None:
        print(text, end="")
        return 0
    try:
        with open(output, "x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailed(f"{quoted(output)} already exists; refusing to overwrite it") from None
    except OSError as error:
        raise CommandFailed(f"cannot write {quoted(output)}: {os_detail(error)}") from None
    return 0


async def _replies_in_home(given: str) -> list[Reply]:
    """Find a conversation in the home by `given`, the beginning of its id, and return the replies of the model."""
    from parley.app.recorded_test import replies_in_log
    from parley.app.stores import open_store
    from parley.app.tokens import all_conversations

    loader = settings_loader()
    # The conversation may have used any provider of the settings.
    settings = [loader.choose(SettingsOverrides()).settings]
    for provider in loader.providers():
        with suppress(ConfigError):  # the conversation cannot have used a provider that cannot be used
            settings.append(loader.choose(SettingsOverrides(config={"model_provider": provider})).settings)
    async with open_store(loader) as store:
        named = given.lower() if is_complete(given) else match_conversation(given, await all_conversations(store))
        try:
            return await replies_in_log(store, named, settings)
        except UnknownConversation as error:
            raise CommandFailed(f"no conversation {error.conversation} in {quoted(loader.home)}") from None
