"""Compaction: the source of a summary, the items that it replaces, and the items that stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.builders.events import background_event, task_started, text, token_count, user_message
from kit.builders.records import (
    call,
    call_output,
    history_compacted,
    message,
    model_asked,
    model_said,
    opaque,
    tokens_estimated,
    turn_ended,
    turn_started,
)
from kit.builders.transcript import RecordingTranscript
from kit.models.raw_provider import RecordingClock, settings
from parley.agent.compaction import INSTRUCTIONS, SUMMARY_PREFIX, TokenMeter, compact_if_needed
from parley.agent.prompt import request_for
from parley.agent.tokens import estimate
from parley.config.types import Limits, Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.conversation.records import CallItem
from parley.errors import CannotConnect, ModelError, ModelStreamBroken, UnexpectedStatus
from parley.models.errors import HighDemand, RetryLimitExceeded
from parley.ports.model import CallDone, Chunk, MessageDone, ModelRequest, ResponseDone, TextDelta
from parley.wire.events import BackgroundEvent
from parley.wire.ids import CallId
from parley.wire.items import ImageItem, InputItem, TextItem

WINDOW = 10_000
DONE = ResponseDone(None)


def with_window(window: int | None = WINDOW, instructions: str = "") -> Settings:
    return settings(
        base_instructions=instructions, project_doc_max_bytes=0, model_context_window=window, cwd="/nonexistent"
    )


Reply = Sequence[Chunk] | ModelError | asyncio.Event


class Summaries:
    """A model that returns the given summaries in order, and repeats the last one."""

    def __init__(self, *replies: Reply, max_retries: int = 0) -> None:
        self.max_retries = max_retries
        self.asked: list[ModelRequest] = []
        self._replies = list(replies) or [says("In short.")]

    def why_unsupported(self, item: InputItem) -> str | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        self.asked.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, ModelError):
            yield [TextDelta("broken ")]
            raise reply
        if isinstance(reply, asyncio.Event):
            yield [TextDelta("half a sum")]
            reply.set()
            await asyncio.Event().wait()
        else:
            yield reply

    @property
    def records(self) -> list[str]:
        """The texts that the summaries were made from."""
        found: list[str] = []
        for request in self.asked:
            (item,) = request.history
            assert isinstance(item, UserItem)
            (part,) = item.content
            assert isinstance(part, TextItem)
            found.append(part.text.removeprefix("<record>\n").removesuffix("\n</record>"))
        return found


def says(summary: str) -> list[Chunk]:
    return [TextDelta(summary[:3]), TextDelta(summary[3:]), MessageDone(message(summary)), DONE]


async def room_made(
    transcript: RecordingTranscript,
    model: Summaries,
    chosen: Settings | None = None,
    meter: TokenMeter | None = None,
) -> None:
    async with asyncio.timeout(90):
        await compact_if_needed(
            transcript, model, (), chosen or with_window(), RecordingClock(), meter or TokenMeter()
        )
    assert transcript.shown == []


def tokens(number: int) -> str:
    """Return a text with at most, and about, this number of estimated tokens."""
    return "x" * int((number - 6) * 3.5)


def turn(name: str, size: int, *, calls: int = 0) -> list[LogPayload]:
    """Return the entries of a complete turn of about `size` tokens."""
    share = size // (calls + 1)
    payloads: list[LogPayload] = [turn_started(name), task_started(), user_message(name, message_id=name)]
    for number in range(calls):
        call_id = f"{name}-{number}"
        payloads += [model_asked(), model_said(call(call_id)), call_output(call_id, tokens(share))]
    return [*payloads, model_asked(), model_said(message(tokens(share))), turn_ended()]


def said(name: str) -> list[LogPayload]:
    return [turn_started(name), task_started(), user_message(name, message_id=name)]


def user(words: str) -> UserItem:
    return UserItem((text(words),))


def size(items: Sequence[HistoryItem]) -> int:
    return estimate(ModelRequest(instructions="", context=(), history=items))


# --- the time of compaction ----------------------------------------------------------------------


async def test_a_history_that_fits_is_left_alone() -> None:
    transcript, model = RecordingTranscript(*turn("one", 4_000), *turn("two", 4_000), *said("three")), Summaries()
    before = transcript.history.items
    await room_made(transcript, model)

    assert (model.asked, transcript.payloads, transcript.history.items) == ([], [], before)


async def test_a_model_of_which_no_window_is_known_is_never_summed_up_for() -> None:
    transcript, model = RecordingTranscript(*turn("one", 10_000_000), *said("two")), Summaries()
    await room_made(transcript, model, with_window(None))

    assert (model.asked, transcript.payloads) == ([], [])


async def test_a_summary_takes_the_place_of_what_is_old_and_an_event_reports_it() -> None:
    transcript = RecordingTranscript(*turn("one", 4_000), *turn("two", 4_000), *turn("three", 2_000), *said("four"))
    model, chosen = Summaries(), with_window()
    recent = transcript.history.items[4:]
    used = estimate(request_for(chosen, [*transcript.history.items, *transcript.history.waiting], ()))
    await room_made(transcript, model, chosen)
    transcript.write(model_asked())

    compacted, notice, _ = transcript.payloads
    assert compacted == history_compacted(f"{SUMMARY_PREFIX}In short.", replaced=4)
    assert isinstance(notice, BackgroundEvent)
    number = int(notice.message.split()[2])
    assert notice == background_event(f"Context compacted: {number} of 10000 tokens")
    assert abs(number - used) <= 2  # the parts of the estimate are rounded
    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}In short."), *recent, user("four")]


async def test_waiting_input_counts_and_is_not_summarized() -> None:
    transcript, model = RecordingTranscript(*turn("one", 2_000), *turn("two", 2_000)), Summaries()
    await room_made(transcript, model)
    assert model.asked == []

    transcript.write(turn_started("three"), task_started(), user_message(tokens(6_000), message_id="three"))
    await room_made(transcript, model)
    transcript.write(model_asked())

    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}In short."), user(tokens(6_000))]


@pytest.mark.parametrize("instructions", [10_100, 50_000])
async def test_where_all_else_is_more_than_the_window_no_history_is_given_up_for_nothing(instructions: int) -> None:
    transcript, model = RecordingTranscript(*turn("one", 4_000), *turn("two", 4_000), *said("three")), Summaries()
    await room_made(transcript, model, with_window(instructions=tokens(instructions)))

    assert (model.asked, transcript.payloads) == ([], [])


async def test_one_message_that_is_too_long_for_the_window_does_not_stop_the_conversation_for_good() -> None:
    too_long = user_message(tokens(50_000), message_id="one")
    transcript, model = RecordingTranscript(turn_started("1"), too_long), Summaries()
    await room_made(transcript, model)
    assert model.asked == []

    transcript.write(model_asked(), turn_ended("failed"), *said("two"))
    await room_made(transcript, model)
    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}In short.")]


# --- the request for a summary -------------------------------------------------------------------


async def test_the_text_for_the_summary_names_the_author_of_each_item() -> None:
    image = ImageItem(image_url="data:image/png;base64,AA")
    transcript = RecordingTranscript(
        turn_started(),
        user_message("look at ", "this", image, message_id="one"),
        model_asked(),
        model_said(opaque()),
        model_said(message("I look.")),
        model_said(call("c1", '{"command": ["ls"]}')),
        call_output("c1", "a.py"),
        model_asked(),
        model_said(message(tokens(9_000))),
        turn_ended(),
        *said("two"),
    )
    model = Summaries()
    await room_made(transcript, model)

    request = model.asked[0]
    assert (request.instructions, request.context, request.tools) == (INSTRUCTIONS, (), ())
    begin, _, rest = model.records[0].partition("\n\nAGENT: x")
    assert begin == "\n\n".join(
        (
            "USER: look at this\n[and 1 images or files]",
            "AGENT: I look.",
            'AGENT CALLED shell: {"command": ["ls"]}',
            "RESULT: a.py",
        )
    )
    assert set(rest.partition("\n")[0]) == {"x"}


async def test_an_earlier_summary_is_summed_up_with_the_rest() -> None:
    transcript = RecordingTranscript(*turn("one", 9_000), *said("two"))
    await room_made(transcript, Summaries(says("The first.")))
    transcript.write(model_asked(), model_said(message(tokens(9_000))), turn_ended(), *said("three"))
    model = Summaries(says("The second."))
    await room_made(transcript, model)

    assert model.records[0].startswith(f"{SUMMARY_PREFIX}The first.\n\nUSER: two\n\nAGENT: xxx")
    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}The second.")]


@pytest.mark.parametrize(("outputs", "longest"), [(4, 4_000), (12, 1_000), (60, 250)])
async def test_outputs_are_shortened_as_far_as_the_record_has_to_be(outputs: int, longest: int) -> None:
    transcript, model = RecordingTranscript(*said("go")), Summaries()
    for number in range(outputs):
        transcript.write(model_asked(), model_said(call(f"c{number}")), call_output(f"c{number}", "y" * 9_000))
    await room_made(transcript, model)

    parts = model.records[0].split("RESULT: ")[1:]
    assert [part.count("y") for part in parts] == [longest] * (outputs - 1)  # the last part stays unchanged


@pytest.mark.parametrize("words", ["English prose. ", "这是一个句子。", "😀", "Съешь ещё булок "])
async def test_the_request_for_a_summary_fits_in_every_script(words: str) -> None:
    transcript, model = RecordingTranscript(*turn("one", 100)), Summaries()
    transcript.write(*said("two"), model_asked(), model_said(message(words * 10_000)), turn_ended(), *said("three"))
    await room_made(transcript, model)

    assert estimate(model.asked[0]) <= WINDOW
    assert " characters left out ...]" in model.records[0]
    assert model.records[0].startswith("USER: one\n\nAGENT: x")
    assert model.records[0].endswith(words)


# --- the remaining items -------------------------------------------------------------------------


async def test_the_last_response_stays_with_its_outputs_while_they_fit() -> None:
    working: list[LogPayload] = [
        *said("two"),
        model_asked(),
        model_said(call("c1")),
        model_said(call("c2")),
        call_output("c1", tokens(2_500)),
        call_output("c2", tokens(2_500)),
    ]
    transcript, model = RecordingTranscript(*turn("one", 4_000), *working), Summaries()
    await room_made(transcript, model)

    assert transcript.history.items == [
        user(f"{SUMMARY_PREFIX}In short."),
        user("two"),
        call("c1"),
        OutputItem(CallId("c1"), tokens(2_500)),
        call("c2"),
        OutputItem(CallId("c2"), tokens(2_500)),
    ]


async def test_a_last_response_that_does_not_fit_is_summed_up_too() -> None:
    working: list[LogPayload] = [*said("two"), model_asked()]
    working += [model_said(call(f"c{number}")) for number in range(10)]
    working += [call_output(f"c{number}", tokens(2_500)) for number in range(10)]
    transcript, model = RecordingTranscript(*turn("one", 1_000), *working), Summaries()
    await room_made(transcript, model)
    transcript.write(model_asked(), model_said(call("c0")), call_output("c0", "again"))

    assert transcript.history.items == [
        user(f"{SUMMARY_PREFIX}In short."),
        call("c0"),
        OutputItem(CallId("c0"), "again"),
    ]


turns = st.lists(
    st.tuples(st.integers(0, 4), st.integers(30, 4_000), st.sampled_from([10, 10, 10, 7_000, 9_990])), max_size=12
)


@given(turns=turns, ratio=st.sampled_from([0.3, 1.0, 2.0]), summary=st.sampled_from([1, 40_000]))
def test_room_is_always_made_and_not_made_again_before_it_is_needed(
    turns: list[tuple[int, int, int]], ratio: float, summary: int
) -> None:
    async def live() -> None:
        transcript, model, meter, chosen = (
            RecordingTranscript(),
            Summaries(says("s" * summary)),
            TokenMeter(),
            with_window(),
        )
        probe = ModelRequest(instructions=tokens(1_000), context=(), history=())
        meter.reported(probe, token_count(input_tokens=int(estimate(probe) * ratio), output_tokens=0))

        async def ask() -> None:
            before = transcript.history.items
            asked = len(model.asked)
            await room_made(transcript, model, chosen, meter)
            rest = meter.tokens(request_for(chosen, transcript.history.waiting, ()))
            if rest < WINDOW:
                room = max(0.85 * WINDOW - rest, 0.1 * WINDOW)
                has = meter.tokens(ModelRequest(instructions="", context=(), history=transcript.history.items))
                assert has <= (room if len(model.asked) == asked else 0.95 * room)
            if len(model.asked) > asked:
                assert len(model.asked) == asked + 1
                assert size(transcript.history.items) < size(before)
                assert meter.tokens(model.asked[-1]) <= WINDOW
                await room_made(transcript, model, chosen, meter)
                assert len(model.asked) == asked + 1
            check_pairs(transcript.history.items)
            transcript.write(model_asked())

        for number, (calls, length, spoken) in enumerate(turns):
            begun = user_message(tokens(spoken), message_id=str(number))
            transcript.write(turn_started(str(number)), task_started(), begun)
            for each in range(calls):
                await ask()
                ids = [f"{number}-{each}-{one}" for one in range(each)]
                transcript.write(*(model_said(call(call_id)) for call_id in ids))
                transcript.write(*(call_output(call_id, tokens(length)) for call_id in ids))
            await ask()
            transcript.write(model_said(message("Done")), turn_ended())

    asyncio.run(live())


def check_pairs(items: Sequence[HistoryItem]) -> None:
    calls = [item.call_id for item in items if isinstance(item, CallItem)]
    assert calls == [item.call_id for item in items if isinstance(item, OutputItem)]


# --- empty and failed summaries ------------------------------------------------------------------


def long_talk() -> RecordingTranscript:
    """Return a history that must be summarized completely."""
    return RecordingTranscript(
        *turn("one", 9_000),
        *said("two"),
        history_compacted(f"{SUMMARY_PREFIX}What was before.", replaced=2),
        model_asked(),
        model_said(message(tokens(5_000))),
        turn_ended(),
        *turn("three", 6_500),
        *said("four"),
    )


REQUESTS = f"{SUMMARY_PREFIX}What was before.\n- The user said: two\n- The user said: three"


@pytest.mark.parametrize(
    "reply",
    [
        UnexpectedStatus(400, "Bad Request", "no"),
        UnexpectedStatus(413, "Content Too Large", "no"),
        UnexpectedStatus(422, "Unprocessable Content", "no"),
        says(""),
        says(" \n "),
        [DONE],
        [CallDone(call("c1")), DONE],
    ],
)
async def test_where_there_is_no_summary_the_users_own_words_stay(reply: Reply) -> None:
    transcript, model = long_talk(), Summaries(reply, max_retries=5)
    await room_made(transcript, model)
    transcript.write(model_asked())

    assert transcript.history.items == [user(REQUESTS), user("four")]
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [
        UnexpectedStatus(401, "Unauthorized", "no"),
        UnexpectedStatus(403, "Forbidden", "no"),
        UnexpectedStatus(404, "Not Found", "no"),
        ModelStreamBroken("gone"),
        RetryLimitExceeded(503, "Service Unavailable"),
        HighDemand(),
        CannotConnect("http://localhost:1", "refused"),
    ],
)
async def test_a_failure_that_says_nothing_of_the_summary_costs_no_history(failure: ModelError) -> None:
    transcript, model = long_talk(), Summaries(failure, says("In short."))
    before = transcript.history.items
    with pytest.raises(type(failure)):
        await room_made(transcript, model)
    assert (transcript.payloads, transcript.history.items) == ([], before)

    await room_made(transcript, model)
    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}In short.")]


async def test_only_the_successful_attempt_is_the_summary_and_its_tokens_are_counted() -> None:
    spent = token_count(input_tokens=900, output_tokens=20)
    whole: list[Chunk] = [TextDelta("In short."), ResponseDone(spent)]
    transcript, model = long_talk(), Summaries(ModelStreamBroken("gone"), whole, max_retries=1)
    await room_made(transcript, model)

    notice, *rest, error = transcript.payloads
    assert isinstance(notice, BackgroundEvent)
    assert notice.message.startswith("stream error: stream disconnected before completion: gone; retrying 1/1 in ")
    assert rest == [spent, history_compacted(f"{SUMMARY_PREFIX}In short.", replaced=5)]
    assert isinstance(error, BackgroundEvent)
    assert model.records[0] == model.records[1]


async def test_the_cost_of_a_summary_is_estimated_where_a_limit_counts_tokens_and_the_provider_does_not() -> None:
    transcript, model = long_talk(), Summaries()
    await room_made(transcript, model, replace(with_window(), limits=Limits(conversation_tokens=1)))

    (asked,) = model.asked
    cost = estimate(asked) + estimate(ModelRequest(instructions="", context=(), history=[message("In short.")]))
    assert transcript.payloads[0] == tokens_estimated(cost)


async def test_a_summary_that_is_too_long_loses_its_middle() -> None:
    transcript, model = long_talk(), Summaries(says("begin " + "z" * 100_000 + " end"))
    await room_made(transcript, model)

    (item,) = transcript.history.items
    assert isinstance(item, UserItem)
    (part,) = item.content
    assert isinstance(part, TextItem)
    assert part.text.startswith(f"{SUMMARY_PREFIX}begin zzz")
    assert part.text.endswith("zzz end")
    assert size([item]) <= 0.2 * 0.85 * WINDOW + 50


async def test_surrogates_that_cannot_be_stored_are_replaced() -> None:
    transcript, model = long_talk(), Summaries(says("half a pair: \ud83d"))
    await room_made(transcript, model)

    assert transcript.history.items == [user(f"{SUMMARY_PREFIX}half a pair: ?")]


async def test_being_cancelled_in_mid_summary_changes_nothing() -> None:
    begun = asyncio.Event()
    transcript, model = long_talk(), Summaries(begun)
    before = transcript.history.items
    making = asyncio.create_task(room_made(transcript, model))
    async with asyncio.timeout(90):
        await begun.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    assert (transcript.payloads, transcript.history.items) == ([], before)


# --- the meter -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counted", "then"),
    [
        (1_000, 1_000),
        (2_000, 2_000),
        (500, 500),
        (250, 250),
        (8_000, 8_000),
        (90_000, 8_000),
        (249, 1_000),
        (0, 1_000),
    ],
)
def test_the_meter_believes_what_the_provider_counted_unless_it_did_not_count_all(counted: int, then: int) -> None:
    meter, request = TokenMeter(), ModelRequest(instructions="x" * 3_499, context=(), history=())
    assert meter.tokens(request) == 1_000

    meter.reported(request, token_count(input_tokens=counted, output_tokens=1))

    assert meter.tokens(request) == then
