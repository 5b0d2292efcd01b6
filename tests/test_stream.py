"""The stream of one link: over connections that lose, repeat and break, every message arrives once and in order."""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import WireError
from peer.network import stream
from peer.network.stream import NOTES, NUMBERS, PAYLOADS, WINDOW, Incoming, Outgoing
from peer.network.wire import CHUNK_BYTES, Chunk, Note
from peer.protocol.messages import (
    Accept,
    Busy,
    Bye,
    Data,
    Done,
    Fetch,
    Heartbeat,
    Message,
    Model,
    Propose,
    Resume,
    Skip,
)

SIZES = (11, 4, 1)
"""Of the messages of three exchanges, in bytes; a chunk has four."""

MODEL_BYTES = 6
DATA, MODEL, PROPOSE, ACCEPT = (PAYLOADS.index(kind) for kind in (Data, Model, Propose, Accept))


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", 4)
        yield


def data(round: int, exchange: int = 0) -> Data:
    return Data(round, exchange, bytes((round + i) % 251 for i in range(SIZES[exchange])))


def chunk(sequence: int, round: int, exchange: int, offset: int) -> Chunk:
    """One of a `Data`."""
    return Chunk(sequence, DATA, round, exchange, offset)


def note(sequence: int, kind: type[Message], value: int) -> Note:
    return Note(sequence, [*NOTES].index(kind), value)


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
        chunk(0, 3, 0, 0),
        chunk(1, 3, 0, 4),
        chunk(2, 3, 0, 8),
        note(3, Done, 3),
        note(4, Skip, 4),
        note(5, Bye, 5),
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
    assert incoming.take(note(1, Done, 1), None) is None
    assert incoming.take(note(0, Done, 0), None) == Done(0)
    assert incoming.take(note(0, Done, 0), None) is None
    assert incoming.take(note(0, Skip, 0), None) is None
    assert incoming.take(note(2, Skip, 2), None) is None
    assert incoming.next_wanted == 1
    assert incoming.take(note(1, Skip, 1), None) == Skip(1)


EVERY_PAYLOAD: list[tuple[Message, list[Chunk]]] = [
    (data(7, 1), [Chunk(0, DATA, 7, 1, 0)]),
    (Model(7, b"sixsix"), [Chunk(0, MODEL, 7, 0, 0), Chunk(1, MODEL, 7, 0, 4)]),
    (Propose(7, 3, b"elevenseven"), [Chunk(i, PROPOSE, 7, 3, 4 * i) for i in range(3)]),
    (Accept(7, b"elevenseven"), [Chunk(i, ACCEPT, 7, 0, 4 * i) for i in range(3)]),
]


@pytest.mark.parametrize(("message", "headers"), EVERY_PAYLOAD)
def test_every_payload_is_cut_and_put_together_again(message: Message, headers: list[Chunk]) -> None:
    outgoing, incoming = Outgoing(), Incoming(SIZES, MODEL_BYTES)
    outgoing.put(message)
    items = all_items(outgoing)
    assert [header for header, _ in items] == headers
    assert [incoming.take(*item) for item in items] == [None] * (len(items) - 1) + [message]


@pytest.mark.parametrize("message", [*(kind(9) for kind in NUMBERS), Fetch()])
def test_every_note_comes_back(message: Message) -> None:
    outgoing, incoming = Outgoing(), Incoming(())
    outgoing.put(message)
    [(header, body)] = all_items(outgoing)
    assert body is None
    assert incoming.take(header, body) == message
    assert incoming.ended == isinstance(message, Bye)


def test_each_message_has_a_buffer_of_its_own() -> None:
    outgoing, incoming = Outgoing(), Incoming(SIZES, MODEL_BYTES)
    for payload in (b"123456", b"abcdef"):
        outgoing.put(Model(0, payload))
    arrived = [incoming.take(*item) for item in all_items(outgoing)]
    assert arrived == [None, Model(0, b"123456"), None, Model(0, b"abcdef")]


WRONG: dict[str, list[tuple[stream.Numbered, bytes | None]]] = {
    "an exchange that there is not": [(chunk(0, 0, 3, 0), b"1234")],
    "a beginning in the middle": [(chunk(0, 0, 0, 4), b"1234")],
    "a hole": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 0, 0, 8), b"1234")],
    "a step back": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 0, 0, 0), b"1234")],
    "another round in between": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 1, 0, 4), b"1234")],
    "another exchange in between": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 0, 1, 4), b"1234")],
    "more bytes than the model has": [(chunk(0, 0, 1, 0), b"12345")],
    "far more bytes than the model has": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 0, 0, 4), b"x" * CHUNK_BYTES)],
    "a payload that there is not": [(Chunk(0, 4, 0, 0, 0), b"1234")],
    "another kind in between": [(Chunk(0, PROPOSE, 1, 0, 0), b"1234"), (Chunk(1, ACCEPT, 1, 0, 4), b"1234")],
    "another proposal in between": [(Chunk(0, PROPOSE, 1, 0, 0), b"1234"), (Chunk(1, PROPOSE, 1, 1, 4), b"1234")],
    "data in the middle of an answer": [(Chunk(0, ACCEPT, 1, 0, 0), b"1234"), (chunk(1, 1, 0, 4), b"1234")],
    "a proposal with more bytes": [(Chunk(0, PROPOSE, 1, 0, 0), b"123456789012")],
    "a model with more bytes": [(Chunk(0, MODEL, 1, 0, 0), b"1234567")],
    "a model with a second number": [(Chunk(0, MODEL, 1, 1, 0), b"1234")],
    "an answer with a second number": [(Chunk(0, ACCEPT, 1, 1, 0), b"1234")],
    "a model that does not begin": [(Chunk(0, MODEL, 1, 0, 4), b"12")],
    "a note that there is not": [(Note(0, len(NOTES), 0), None)],
    "a question with a number": [(note(0, Fetch, 1), None)],
    "a note in the middle of a model": [(Chunk(0, MODEL, 1, 0, 0), b"1234"), (note(1, Fetch, 0), None)],
    "a goodbye in the middle of a message": [(chunk(0, 0, 0, 0), b"1234"), (note(1, Bye, 1), None)],
    "a skip in the middle of a message": [(chunk(0, 0, 0, 0), b"1234"), (note(1, Skip, 0), None)],
    "something after the goodbye": [(note(0, Bye, 1), None), (note(1, Done, 1), None)],
    "a skip after the goodbye": [(note(0, Bye, 1), None), (note(1, Skip, 1), None)],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_item(name: str) -> None:
    incoming = Incoming(SIZES, MODEL_BYTES)
    *before, (header, body) = WRONG[name]
    for right, bytes_of_it in before:
        incoming.take(right, None if bytes_of_it is None else memoryview(bytes_of_it))
    with pytest.raises(WireError):
        incoming.take(header, None if body is None else memoryview(body))


@pytest.mark.parametrize("what", range(len(PAYLOADS)))
def test_a_payload_that_nobody_sends_in_this_run(what: int) -> None:
    """Without a model, or without exchanges, or with an exchange that moves nothing."""
    for incoming in (Incoming(()), Incoming((0,))):
        with pytest.raises(WireError):
            incoming.take(Chunk(0, what, 0, 0, 0), memoryview(b"1"))


items = st.builds(
    Chunk,
    st.integers(0, 2),
    st.integers(0, len(PAYLOADS)),
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([0, 4, 8]),
) | st.builds(Note, st.integers(0, 2), st.integers(0, len(NOTES)), st.integers(0, 1))


@settings(deadline=None, print_blob=True)
@given(items=st.lists(st.tuples(items, st.binary(min_size=1, max_size=12)), max_size=6), model_bytes=st.integers(0, 6))
def test_any_items_are_messages_of_their_size_or_a_wire_error(
    items: list[tuple[stream.Numbered, bytes]], model_bytes: int
) -> None:
    incoming = Incoming((11, 0, 1), model_bytes)
    try:
        for header, body in items:
            match incoming.take(header, memoryview(body) if isinstance(header, Chunk) else None):
                case Data(_, exchange, payload):
                    assert len(payload) == (11, 0, 1)[exchange] > 0
                case Model(_, payload):
                    assert len(payload) == model_bytes > 0
                case Propose(_, _, payload) | Accept(_, payload):
                    assert len(payload) == 11
            assert len(incoming._buffer) <= 11
    except WireError:
        pass


messages = st.lists(
    st.builds(data, st.integers(0, 2**62), st.integers(0, 2))
    | st.builds(Done, st.integers(0, 9))
    | st.builds(Skip, st.integers(0, 9))
    | st.builds(Resume, st.integers(0, 9))
    | st.builds(Busy, st.integers(0, 9))
    | st.just(Fetch())
    | st.builds(Model, st.integers(0, 9), st.binary(min_size=MODEL_BYTES, max_size=MODEL_BYTES))
    | st.builds(Propose, st.integers(0, 9), st.integers(0, 9), st.binary(min_size=11, max_size=11))
    | st.builds(Accept, st.integers(0, 9), st.binary(min_size=11, max_size=11)),
    max_size=12,
)


@settings(deadline=None, print_blob=True)
@given(messages=messages, seed=st.integers(0, 2**32 - 1))
def test_every_message_arrives_once_and_in_order(messages: list[Message], seed: int) -> None:
    """The connection loses and repeats items, loses acknowledgements, and breaks; items keep their order."""
    random = Random(seed)
    outgoing, incoming = Outgoing(), Incoming(SIZES, MODEL_BYTES)
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
