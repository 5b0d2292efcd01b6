"""The stream of one link: over connections that lose, repeat and break, every message arrives once and in order."""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import WireError
from peer.network import stream
from peer.network.stream import WINDOW, Incoming, Outgoing
from peer.network.wire import CHUNK_BYTES, Chunk, Goodbye, RoundDone, RoundSkipped
from peer.protocol.messages import Bye, Data, Done, Heartbeat, Message, Skip

SIZES = (11, 4, 1)
"""Of the messages of three exchanges, in bytes; a chunk has four."""


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", 4)
        yield


def data(round: int, exchange: int = 0) -> Data:
    return Data(round, exchange, bytes((round + i) % 251 for i in range(SIZES[exchange])))


def all_items(outgoing: Outgoing) -> list[stream.Item]:
    """What is sent until the window is full."""
    items = []
    while (item := outgoing.ready()) is not None:
        items.append(item)
        outgoing.sent()
    return items


def test_a_message_is_cut_and_put_together_again() -> None:
    outgoing, incoming = Outgoing(), Incoming(SIZES)
    for message in (data(3), Done(3), Skip(4), Bye(5)):
        outgoing.put(message)
    items = all_items(outgoing)
    assert [header for header, _ in items] == [
        Chunk(0, 3, 0, 0),
        Chunk(1, 3, 0, 4),
        Chunk(2, 3, 0, 8),
        RoundDone(3, 3),
        RoundSkipped(4, 4),
        Goodbye(5, 5),
    ]
    assert [incoming.take(*item) for item in items] == [None, None, data(3), Done(3), Skip(4), Bye(5)]
    assert incoming.next_wanted == 6
    assert incoming.ended
    assert outgoing.messages == 4
    outgoing.acknowledged(4)
    assert (outgoing.messages, outgoing.acknowledged_until, outgoing.is_empty()) == (2, 4, False)
    outgoing.acknowledged(6)
    assert (outgoing.messages, outgoing.acknowledged_until, outgoing.is_empty()) == (0, 6, True)


def test_the_payload_is_not_copied_until_it_is_sent() -> None:
    payload = bytearray(8)
    outgoing = Outgoing()
    outgoing.put(Data(0, 0, memoryview(payload)))
    payload[4:] = b"late"
    assert bytes(all_items(outgoing)[1][1] or b"") == b"late"


def test_numbers_of_any_type_travel_as_bytes() -> None:
    outgoing = Outgoing()
    outgoing.put(Data(0, 0, memoryview(bytes(8)).cast("d")))
    assert [len(body or b"") for _, body in all_items(outgoing)] == [4, 4]


def test_no_more_than_a_window_is_under_way() -> None:
    outgoing = Outgoing()
    for round in range(WINDOW):
        outgoing.put(data(round))
    assert len(all_items(outgoing)) == WINDOW
    outgoing.acknowledged(2)
    assert [header.sequence for header, _ in all_items(outgoing)] == [WINDOW, WINDOW + 1]
    outgoing.acknowledged(1)  # an old one changes nothing
    assert outgoing.ready() is None
    outgoing.rewind()
    assert [header.sequence for header, _ in all_items(outgoing)] == list(range(2, 2 + WINDOW))


def test_an_acknowledgement_of_what_was_never_sent() -> None:
    outgoing = Outgoing()
    outgoing.put(Done(0))
    with pytest.raises(WireError, match="never sent"):
        outgoing.acknowledged(2)


def test_heartbeats_do_not_queue() -> None:
    with pytest.raises(AssertionError):
        Outgoing().put(Heartbeat(0))


def test_what_was_seen_or_follows_a_gap_changes_nothing() -> None:
    incoming = Incoming(SIZES)
    assert incoming.take(RoundDone(1, 1), None) is None
    assert incoming.take(RoundDone(0, 0), None) == Done(0)
    assert incoming.take(RoundDone(0, 0), None) is None
    assert incoming.take(RoundSkipped(0, 0), None) is None
    assert incoming.take(RoundSkipped(2, 2), None) is None
    assert incoming.next_wanted == 1
    assert incoming.take(RoundSkipped(1, 1), None) == Skip(1)


WRONG: dict[str, list[tuple[stream.Numbered, bytes | None]]] = {
    "an exchange that there is not": [(Chunk(0, 0, 3, 0), b"1234")],
    "a beginning in the middle": [(Chunk(0, 0, 0, 4), b"1234")],
    "a hole": [(Chunk(0, 0, 0, 0), b"1234"), (Chunk(1, 0, 0, 8), b"1234")],
    "a step back": [(Chunk(0, 0, 0, 0), b"1234"), (Chunk(1, 0, 0, 0), b"1234")],
    "another round in between": [(Chunk(0, 0, 0, 0), b"1234"), (Chunk(1, 1, 0, 4), b"1234")],
    "another exchange in between": [(Chunk(0, 0, 0, 0), b"1234"), (Chunk(1, 0, 1, 4), b"1234")],
    "more bytes than the model has": [(Chunk(0, 0, 1, 0), b"12345")],
    "far more bytes than the model has": [(Chunk(0, 0, 0, 0), b"1234"), (Chunk(1, 0, 0, 4), b"x" * CHUNK_BYTES)],
    "a goodbye in the middle of a message": [(Chunk(0, 0, 0, 0), b"1234"), (Goodbye(1, 1), None)],
    "a skip in the middle of a message": [(Chunk(0, 0, 0, 0), b"1234"), (RoundSkipped(1, 0), None)],
    "something after the goodbye": [(Goodbye(0, 1), None), (RoundDone(1, 1), None)],
    "a skip after the goodbye": [(Goodbye(0, 1), None), (RoundSkipped(1, 1), None)],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_item(name: str) -> None:
    incoming = Incoming(SIZES)
    *before, (header, body) = WRONG[name]
    for right, bytes_of_it in before:
        incoming.take(right, None if bytes_of_it is None else memoryview(bytes_of_it))
    with pytest.raises(WireError):
        incoming.take(header, None if body is None else memoryview(body))


messages = st.lists(
    st.builds(data, st.integers(0, 2**62), st.integers(0, 2))
    | st.builds(Done, st.integers(0, 9))
    | st.builds(Skip, st.integers(0, 9)),
    max_size=12,
)


@settings(deadline=None, print_blob=True)
@given(messages=messages, seed=st.integers(0, 2**32 - 1))
def test_every_message_arrives_once_and_in_order(messages: list[Message], seed: int) -> None:
    """The connection loses and repeats items, loses acknowledgements, and breaks; items keep their order."""
    random = Random(seed)
    outgoing, incoming = Outgoing(), Incoming(SIZES)
    forth: deque[stream.Item] = deque()
    back: deque[int] = deque()
    arrived: list[Message] = []
    to_put = deque([*messages, Bye(9)])
    while to_put or not outgoing.is_empty():
        match random.choice(["put", "send", "send", "arrive", "arrive", "acknowledge", "acknowledge", "trouble"]):
            case "put" if to_put:
                outgoing.put(to_put.popleft())
            case "send" if (item := outgoing.ready()) is not None:
                forth.append(item)
                outgoing.sent()
                assert outgoing._under_way <= WINDOW
                assert item[0].sequence < incoming.next_wanted + WINDOW
            case "arrive" if forth:
                for _ in range(random.choice([0, 1, 1, 1, 1, 2])):  # lost, as it is, twice
                    if (message := incoming.take(*forth[0])) is not None:
                        arrived.append(message)
                forth.popleft()
                if random.random() < 0.9:
                    back.append(incoming.next_wanted)
            case "acknowledge" if back:
                outgoing.acknowledged(back.popleft())
            case "trouble" if random.random() < 0.3:  # the connection breaks, and what was in it may be gone
                for _ in range(random.randint(0, len(forth))):
                    forth.pop()
                for _ in range(random.randint(0, len(back))):
                    back.pop()
                outgoing.rewind()
                back.append(incoming.next_wanted)
    assert arrived == [*messages, Bye(9)]
    assert outgoing.messages == 0
