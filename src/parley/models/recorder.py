"""Writes requests to a model and the model's replies to a file, with secrets redacted. `recording.py` defines the
format of the file.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import UNSET

from parley.common.shield import run_to_completion
from parley.config.types import Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageItem
from parley.errors import ModelError, ModelStreamBroken
from parley.models.errors import BadRecording
from parley.models.recording import (
    Exchange,
    RecordedItem,
    RecordedOutput,
    RecordedRequest,
    RecordingDirectories,
    append_line,
    file_of,
    prepare,
)
from parley.models.redaction import Redactor, secrets_of
from parley.models.script import Search, Step, Usage, recorded_call
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    Model,
    ModelRequest,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    Retrying,
    TextDelta,
)
from parley.wire.events import TokenCount, WebSearch
from parley.wire.ids import ConversationId
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem
from parley.wire.jsonrpc import encode

__all__ = ["RecordedBefore", "RecordingModel"]

log: Final = logging.getLogger(__name__)

SHOWN_URL: Final = 200
"""The maximum length, in characters, of the URL of an attachment in a recording."""


class RecordedBefore:
    """The recorder's state for one conversation: the checksums of the parts of the previous request in the
    recording, and the secrets that were found in the conversation.
    """

    def __init__(self) -> None:
        self.redactor = Redactor(())
        self.file: tuple[int, int] | None = None
        """The device and the inode of the recording; None if no request has been recorded."""
        self.forget()

    def forget(self) -> None:
        """Discard the checksums of the previous request, so that the next request is recorded completely."""
        self.history: list[int] = []
        self.instructions = self.context = 0


class RecordingModel:
    """A model whose requests and replies are recorded."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        conversation: ConversationId,
        path: str,
        *,
        before: RecordedBefore,
        directories: RecordingDirectories,
        clock: Clock,
    ) -> None:
        self.max_retries = model.max_retries
        self._model, self._settings, self._conversation = model, settings, conversation
        self._path, self._before, self._clock = path, before, clock
        self._directories = directories

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Yield the reply of the model. At the end of the reply, append the request and the reply to the recording.

        Raises:
            BadRecording: the recording cannot be created, or the file is not a recording.
            ModelError: the request failed.
        """
        directory_fd = await asyncio.to_thread(self._directories.descriptor, self._path)
        await asyncio.to_thread(prepare, self._path, directory_fd)
        reply = _Reply()
        try:
            async with aclosing(self._model.stream(request)) as batches:
                async for batch in batches:
                    for chunk in batch:
                        reply.add(chunk)
                    yield batch
        except ModelError as error:
            reply.fail(error)
            raise
        finally:
            # In a thread, because a long history takes time, and another process may hold the lock of the file.
            await run_to_completion(
                asyncio.ensure_future(asyncio.to_thread(self._write, request, reply, directory_fd))
            )

    def why_unsupported(self, item: InputItem) -> str | None:
        return self._model.why_unsupported(item)

    def _write(self, request: ModelRequest, reply: _Reply, directory_fd: int) -> None:
        """Append the request and the reply to the recording. A failure is only logged, because it must not affect
        the turn. `directory_fd` is the descriptor of the directory that contains the recording.
        """
        before = self._before
        if (file := file_of(self._path, directory_fd)) != before.file:
            before.forget()
            before.file = file
        try:
            exchange = Exchange(
                conversation=self._conversation,
                at=self._clock.now(),
                model=self._settings.model,
                request=_new_part(request, before),
                reply=tuple(reply.steps()),
                interrupted=not reply.is_whole,
            )
            secrets = secrets_of(self._settings)
            redacted = before.redactor.redact(msgspec.to_builtins(exchange), secrets)
            if not append_line(self._path, encode(redacted) + b"\n", directory_fd):
                before.forget()
                log.warning("recording %s is full, and an exchange was not recorded", self._path)
        except BadRecording as error:
            before.forget()
            log.warning("cannot record an exchange in %s: %s", self._path, error)
        except (ValueError, RecursionError) as error:  # the next exchange omits the value that cannot be encoded
            log.warning("cannot record an exchange in %s: %s", self._path, error)


# --- the request -----------------------------------------------------------------------


def _new_part(request: ModelRequest, before: RecordedBefore) -> RecordedRequest:
    """Return the part of a request that the previous request does not contain, and update `before`."""
    sums = [_checksum(item) for item in request.history]
    kept = 0
    while kept < min(len(before.history), len(sums)) and before.history[kept] == sums[kept]:
        kept += 1
    instructions = "\n\n".join(filter(None, (request.instructions, request.developer_instructions)))
    of_instructions, of_context = _checksum(instructions), _checksum(request.context)
    part = RecordedRequest(
        kept=kept,
        items=tuple(found for item in request.history[kept:] if (found := _item(item)) is not None),
        instructions=UNSET if of_instructions == before.instructions else instructions,
        context=UNSET if of_context == before.context else request.context,
        tools=tuple(tool.name for tool in request.tools),
    )
    before.history, before.instructions, before.context = sums, of_instructions, of_context
    return part


def _checksum(value: Any) -> int:
    return zlib.crc32(encode(value)) + 1  # 0 means that there is no previous request


def _item(item: HistoryItem) -> RecordedItem | None:
    match item:
        case UserItem(content=content):
            texts = [one.text for one in content if isinstance(one, TextItem)]
            attachments = tuple(_description(one) for one in content if not isinstance(one, TextItem))
            return RecordedItem(user="\n".join(texts), attachments=attachments)
        case MessageItem(text=text):
            return RecordedItem(assistant=text)
        case CallItem():
            return RecordedItem(call=recorded_call(item))
        case OutputItem(call_id=call_id, output=output):
            return RecordedItem(output=RecordedOutput(call_id=call_id, text=output))
        case _:
            return None  # reasoning is not recorded


def _description(item: InputItem) -> str:
    """Return a description of an attachment without its content."""
    match item:
        case ImageItem(image_url=str(url)) if url[:5].lower() == "data:":
            return f"image of {len(url)} characters"
        case ImageItem(image_url=str(url)):
            return f"image {url[:SHOWN_URL]}"
        case LocalImageItem(path=path):
            return f"image {path}"
        case FileItem(filename=str(name)):
            return f"file {name}"
        case FileItem(file_url=str(url)):
            return f"file {url[:SHOWN_URL]}"
        case _:
            return "image" if isinstance(item, ImageItem) else "file"


# --- the reply -------------------------------------------------------------------------


class _Reply:
    """Collects the chunks of a reply as the steps of a script."""

    def __init__(self) -> None:
        self.is_whole = False
        """True if the reply has ended, with success or with a failure."""
        self._steps: list[Step] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._raw: list[str] = []

    def add(self, chunk: Chunk) -> None:
        steps = self._steps
        match chunk:
            case TextDelta(text=text):
                self._text.append(text)
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
            case RawReasoningDelta(text=text):
                self._raw.append(text)
            case MessageDone(item=item):
                self._text.clear()
                steps.append(Step(text=item.text))
            case ReasoningDone(summaries=summaries, raw=raw):
                self._reasoning.clear()
                self._raw.clear()
                steps += [Step(reasoning=text) for text in summaries]
                steps += [Step(raw_reasoning=text) for text in raw]
            case CallDone(item=call):
                steps.append(Step(call=recorded_call(call)))
            case OpaqueDone(search=search):
                if search is not None:
                    steps.append(Step(search=_search(search)))
            case ResponseDone():
                self._end(chunk)
            case Retrying():
                pass  # the request is repeated before the provider has responded

    def fail(self, error: ModelError) -> None:
        self._keep_pieces()
        self.is_whole = True
        if isinstance(error, ModelStreamBroken):
            self._steps.append(Step(fail=error.detail))
        elif error.worth_repeating:
            self._steps.append(Step(fail=str(error)))
        else:
            self._steps.append(Step(error=str(error)))

    def steps(self) -> list[Step]:
        if not self.is_whole:
            self._keep_pieces()
        return self._steps

    def _end(self, done: ResponseDone) -> None:
        self.is_whole = True
        if done.usage is not None:
            self._steps.append(Step(usage=_usage(done.usage)))
        if done.cut_by is not None:
            self._steps.append(Step(cut_by=done.cut_by))
        if done.refused is not None:
            self._steps.append(Step(refused=done.refused))
        if done.is_paused:
            self._steps.append(Step(paused=True))

    def _keep_pieces(self) -> None:
        """Add unfinished text and unfinished reasoning to the steps of the reply."""
        if self._reasoning:
            self._steps.append(Step(reasoning="".join(self._reasoning)))
        if self._raw:
            self._steps.append(Step(raw_reasoning="".join(self._raw)))
        if self._text:
            self._steps.append(Step(text="".join(self._text)))


def _search(search: WebSearch) -> Search:
    return Search(query=search.query, results=search.results, error=search.error)


def _usage(usage: TokenCount) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_output_tokens=usage.reasoning_output_tokens,
    )
