"""A connection to another process: its messages, their order, and its end."""

from __future__ import annotations

from kit.servers.peers import LinkRecorder, StartPeer, leaving, saying
from parley.peers import UnixPeers
from parley.transports.unix import MAX_UNREAD_BYTES
from parley.wire.jsonrpc import METHOD_NOT_FOUND, Message

ANSWER = '{"jsonrpc":"2.0","id":$id,"result":{}}'
ONE = '{"jsonrpc":"2.0","method":"one","params":{"n":1}}'
LONG = '{"jsonrpc":"2.0","method":"long","params":"' + "x" * 2**20 + '"}'
TWO = '{"jsonrpc":"2.0","method":"two","params":{"n":2}}'


async def test_answers_and_news_come_in_the_order_in_which_they_were_said(
    peers: UnixPeers, start: StartPeer
) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    link.request("first", saying(ONE, ANSWER, TWO), answered=recorder.answered)
    link.request("second", saying(ANSWER, ONE), answered=recorder.answered)

    assert [await recorder.next() for _ in range(5)] == [
        ("one", {"n": 1}),
        ("answered", 1),
        ("two", {"n": 2}),
        ("answered", 2),
        ("one", {"n": 1}),
    ]


async def test_an_answer_that_closes_the_link_is_the_last_that_is_heard(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    def answered(message: Message) -> None:
        link.close()
        recorder.answered(message)

    link.request("ask", saying(ANSWER, ONE, ANSWER), answered=answered)

    assert await recorder.next() == ("answered", 1)
    await peers.close()
    assert recorder.nothing_more()


async def test_an_error_is_an_answer(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    link.request("ask", saying('{"jsonrpc":"2.0","id":$id,"error":{"code":-1}}'), answered=recorder.answered)

    assert await recorder.next() == ("failed",)


async def test_a_kill_is_heard_once_and_no_answer_comes(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)
    link.request("ask", saying(), answered=recorder.answered)
    await peer.received()

    await peer.killed()

    assert await recorder.next() == "gone"
    link.request("ask", saying(ANSWER), answered=recorder.answered)
    link.notify("tell", saying(ONE))
    link.close()
    await peers.close()
    assert recorder.nothing_more()


async def test_all_messages_of_a_process_that_ends_in_order_are_read(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    link.notify("bye", leaving(LONG, ONE))

    assert [await recorder.next() for _ in range(3)] == [("long", "x" * 2**20), ("one", {"n": 1}), "gone"]


async def test_a_process_that_sends_invalid_messages_is_disconnected_and_others_are_not(
    peers: UnixPeers, start: StartPeer
) -> None:
    recorder, other, peer = LinkRecorder(), LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)
    sound = await other.on(peers, peer.address)

    link.request("ask", saying(ONE, "nonsense", ANSWER, TWO), answered=recorder.answered)
    assert [await recorder.next(), await recorder.next()] == [("one", {"n": 1}), "gone"]
    sound.request("ask", saying(ANSWER), answered=other.answered)

    assert await other.next() == ("answered", 1)
    assert recorder.nothing_more()


async def test_a_listener_that_raises_misses_only_what_it_raised_at(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    def fail(message: Message) -> None:
        raise RuntimeError("on purpose")

    link.request("ask", saying(ANSWER, ONE), answered=fail)

    assert await recorder.next() == ("one", {"n": 1})


async def test_a_process_that_leaves_too_much_unread_is_disconnected(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)
    peer.stopped()

    megabyte = b'"' + b"x" * 2**20 + b'"'
    for _ in range(MAX_UNREAD_BYTES // 2**20 + 1):
        link.notify("much", megabyte)

    assert await recorder.next() == "gone"
    assert recorder.nothing_more()


async def test_a_request_of_the_other_process_gets_method_not_found(peers: UnixPeers, start: StartPeer) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)

    link.notify("come on", saying('{"jsonrpc":"2.0","id":7,"method":"ask"}'))

    assert [await peer.received(), await peer.received()] == [
        {"jsonrpc": "2.0", "method": "come on", "params": {"say": ['{"jsonrpc":"2.0","id":7,"method":"ask"}']}},
        {"jsonrpc": "2.0", "id": 7, "error": {"code": METHOD_NOT_FOUND, "message": "method not found: ask"}},
    ]
