"""Clients for model APIs.

There is one module for each API, selected by the setting `wire_api`. With the setting `record`, the requests and
replies are recorded. The module of an API is imported when a conversation first uses the API.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, assert_never

if TYPE_CHECKING:
    from parley.config.types import Settings
    from parley.models.http import Http
    from parley.models.recorder import RecordedBefore
    from parley.models.recording import RecordingDirectories
    from parley.ports.clock import Clock
    from parley.ports.model import Model, OpenModel
    from parley.wire.ids import ConversationId

__all__ = ["MAX_RECORDED", "model_opener"]

MAX_RECORDED: Final = 1000
"""The maximum number of conversations for which the recorder stores the checksums of the previous request. If the
previous request of a conversation is unknown, the recorder writes the next request completely.
"""


def model_opener(*, http: Http, clock: Clock) -> OpenModel:
    """Return a function that opens a model for a conversation. All opened models share the HTTP client `http`."""
    scripted_replies: Counter[ConversationId] = Counter()
    recorded: OrderedDict[ConversationId, RecordedBefore] = OrderedDict()

    directories: list[RecordingDirectories] = []

    def open_model(settings: Settings, conversation: ConversationId) -> Model:
        model = open_api(settings, conversation)
        if settings.record is None:
            return model
        from parley.models.recorder import RecordedBefore, RecordingModel
        from parley.models.recording import RecordingDirectories

        if not directories:
            directories.append(RecordingDirectories())
        before = recorded.setdefault(conversation, RecordedBefore())
        recorded.move_to_end(conversation)
        if len(recorded) > MAX_RECORDED:
            recorded.popitem(last=False)
        return RecordingModel(
            model, settings, conversation, settings.record, before=before, directories=directories[0], clock=clock
        )

    def open_api(settings: Settings, conversation: ConversationId) -> Model:
        match settings.provider.wire_api:
            case "chat":
                from parley.models.chat import ChatModel

                return ChatModel(settings, http=http, clock=clock)
            case "responses":
                from parley.models.responses import ResponsesModel

                return ResponsesModel(settings, conversation, http=http, clock=clock)
            case "anthropic":
                from parley.models.anthropic import AnthropicModel

                return AnthropicModel(settings, http=http, clock=clock)
            case "scripted":
                from parley.models.scripted import ScriptedModel

                return ScriptedModel(settings.provider, conversation, replies_given=scripted_replies, clock=clock)
            case unknown:
                assert_never(unknown)

    return open_model
