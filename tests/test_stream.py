"""The stream of one link: over connections that lose, repeat and break, every message arrives once and in order."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import WireError
from peer.network import stream
from peer.network.sizes import Sizes
from peer.network.stream import NOTES, NUMBERS, PAYLOADS, PIECES, STEPS, WINDOW, Incoming, Outgoing
from peer.network.wire import CHUNK_BYTES, Chunk, Note, decode, encode
from peer.protocol.messages import (
    Accept,
    Broken,
    Busy,
    Bye,
    Data,
    Done,
    Fetch,
    Global,
    Heartbeat,
    Message,
    Model,
    Piece,
    Propose,
    Pull,
    Push,
    Resume,
    Skip,
)

DATA_BYTES = (11, 4, 1)
"""Of the messages of three exchanges; a chunk has four."""

MODEL_BYTES, PUSH_BYTES, GIVEN_BYTES = 6, 9, 7
PIECE_BYTES = {("scatter", 0, 0): 5, ("scatter", 0, 1): 4, ("gather", 1, 0): 3}


def piece_bytes(phase: str, step: int, piece: int) -> int:
    """Both ways to say that there is no such piece: an error for the step, 0 for the piece."""
    if step > 1:
        raise ValueError(step)
    return PIECE_BYTES.get((phase, step, piece), 0)


SIZES = Sizes(DATA_BYTES, MODEL_BYTES, PUSH_BYTES, GIVEN_BYTES, piece_bytes, is_ragged=True)
DATA, MODEL, PROPOSE, ACCEPT, PUSH, GLOBAL, PIECE = map(
    PAYLOADS.index, (Data, Model, Propose, Accept, Push, Global, Piece)
)


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", 4)
        yield


def data(round: int, exchange: int = 0) -> Data:
    return Data(round, exchange, bytes((round + i) % 251 for i in range(DATA_BYTES[exchange])))


def chunk(sequence: int, round: int, exchange: int, offset: int) -> Chunk:
    """One of a `Data`."""
    size = DATA_BYTES[exchange] if exchange < len(DATA_BYTES) else 4
    return Chunk(sequence, DATA, round, exchange, size, offset)


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
    (data(7, 1), [Chunk(0, DATA, 7, 1, 4, 0)]),
    (Model(7, b"sixsix"), [Chunk(0, MODEL, 7, 0, 6, 0), Chunk(1, MODEL, 7, 0, 6, 4)]),
    (Propose(7, 3, b"elevenseven"), [Chunk(i, PROPOSE, 7, 3, 11, 4 * i) for i in range(3)]),
    (Accept(7, b"elevenseven"), [Chunk(i, ACCEPT, 7, 0, 11, 4 * i) for i in range(3)]),
    (Push(7, 3, b"ninebytes"), [Chunk(i, PUSH, 7, 3, 9, 4 * i) for i in range(3)]),
    (Push(7, 3, b"short"), [Chunk(0, PUSH, 7, 3, 5, 0), Chunk(1, PUSH, 7, 3, 5, 4)]),
    (Push(7, 3, b"."), [Chunk(0, PUSH, 7, 3, 1, 0)]),
    (Global(7, b"7 bytes", 3), [Chunk(0, GLOBAL, 7, 3, 7, 0), Chunk(1, GLOBAL, 7, 3, 7, 4)]),
    (Piece(7, "scatter", 0, 0, b"first"), [Chunk(0, PIECE, 7, 0, 5, 0), Chunk(1, PIECE, 7, 0, 5, 4)]),
    (Piece(7, "scatter", 0, 1, b"next"), [Chunk(0, PIECE, 7, 1, 4, 0)]),
    (Piece(7, "gather", 1, 0, b"sum"), [Chunk(0, PIECE, 7, (2**20 + 1) * 2**32, 3, 0)]),
]


@pytest.mark.parametrize(("message", "headers"), EVERY_PAYLOAD)
def test_every_payload_is_cut_and_put_together_again(message: Message, headers: list[Chunk]) -> None:
    outgoing, incoming = Outgoing(), Incoming(SIZES)
    outgoing.put(message)
    items = all_items(outgoing)
    assert [header for header, _ in items] == headers
    assert [incoming.take(*item) for item in items] == [None] * (len(items) - 1) + [message]


@pytest.mark.parametrize("message", [*(kind(9) for kind in NUMBERS), Fetch(), Pull(None), Pull(0), Pull(9), Broken(0)])
def test_every_note_comes_back(message: Message) -> None:
    outgoing, incoming = Outgoing(), Incoming(Sizes())
    outgoing.put(message)
    [(header, body)] = all_items(outgoing)
    assert body is None
    assert incoming.take(header, body) == message
    assert incoming.ended == isinstance(message, Bye)


def test_each_message_has_a_buffer_of_its_own() -> None:
    outgoing, incoming = Outgoing(), Incoming(SIZES)
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
    "another size in between": [(Chunk(0, PUSH, 1, 0, 8, 0), b"1234"), (Chunk(1, PUSH, 1, 0, 9, 4), b"1234")],
    "more bytes than the model has": [(chunk(0, 0, 1, 0), b"12345")],
    "far more bytes than the model has": [(chunk(0, 0, 0, 0), b"1234"), (chunk(1, 0, 0, 4), b"x" * CHUNK_BYTES)],
    "a payload that there is not": [(Chunk(0, len(PAYLOADS), 0, 0, 4, 0), b"1234")],
    "another kind in between": [(Chunk(0, PROPOSE, 1, 0, 11, 0), b"1234"), (Chunk(1, ACCEPT, 1, 0, 11, 4), b"1234")],
    "another proposal in between": [
        (Chunk(0, PROPOSE, 1, 0, 11, 0), b"1234"),
        (Chunk(1, PROPOSE, 1, 1, 11, 4), b"1234"),
    ],
    "data in the middle of an answer": [(Chunk(0, ACCEPT, 1, 0, 11, 0), b"1234"), (chunk(1, 1, 0, 4), b"1234")],
    "a proposal with more bytes": [(Chunk(0, PROPOSE, 1, 0, 11, 0), b"123456789012")],
    "a model with more bytes": [(Chunk(0, MODEL, 1, 0, 6, 0), b"1234567")],
    "a model with a second number": [(Chunk(0, MODEL, 1, 1, 6, 0), b"1234")],
    "an answer with a second number": [(Chunk(0, ACCEPT, 1, 1, 11, 0), b"1234")],
    "a model that does not begin": [(Chunk(0, MODEL, 1, 0, 6, 4), b"12")],
    "a push with more bytes than it says": [(Chunk(0, PUSH, 1, 0, 3, 0), b"1234")],
    "a push that does not begin": [(Chunk(0, PUSH, 1, 0, 9, 4), b"1234")],
    "another push in between": [(Chunk(0, PUSH, 1, 0, 9, 0), b"1234"), (Chunk(1, PUSH, 2, 0, 9, 4), b"1234")],
    "another version in between": [(Chunk(0, GLOBAL, 1, 0, 7, 0), b"1234"), (Chunk(1, GLOBAL, 2, 0, 7, 4), b"123")],
    "another piece in between": [(Chunk(0, PIECE, 1, 0, 5, 0), b"1234"), (Chunk(1, PIECE, 1, 1, 5, 4), b"1")],
    "a piece beyond the last": [(Chunk(0, PIECE, 1, 2, 4, 0), b"1234")],
    "a piece of a step beyond the last": [(Chunk(0, PIECE, 1, 2 * PIECES, 4, 0), b"1234")],
    "a piece of no phase": [(Chunk(0, PIECE, 1, 2 * STEPS * PIECES, 5, 0), b"1234")],
    "a piece beyond all phases": [(Chunk(0, PIECE, 1, 2**62, 5, 0), b"1234")],
    "a note that there is not": [(Note(0, len(NOTES), 0), None)],
    "a question with a number": [(note(0, Fetch, 1), None)],
    "a note in the middle of a model": [(Chunk(0, MODEL, 1, 0, 6, 0), b"1234"), (note(1, Fetch, 0), None)],
    "a goodbye in the middle of a message": [(chunk(0, 0, 0, 0), b"1234"), (note(1, Bye, 1), None)],
    "a skip in the middle of a message": [(chunk(0, 0, 0, 0), b"1234"), (note(1, Skip, 0), None)],
    "a pull in the middle of a push": [(Chunk(0, PUSH, 1, 0, 9, 0), b"1234"), (note(1, Pull, 0), None)],
    "something after the goodbye": [(note(0, Bye, 1), None), (note(1, Done, 1), None)],
    "a skip after the goodbye": [(note(0, Bye, 1), None), (note(1, Skip, 1), None)],
    "parameters after the goodbye": [(note(0, Bye, 1), None), (Chunk(1, GLOBAL, 1, 0, 7, 0), b"1234")],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_item(name: str) -> None:
    incoming = Incoming(SIZES)
    *before, (header, body) = WRONG[name]
    for right, bytes_of_it in before:
        incoming.take(right, None if bytes_of_it is None else memoryview(bytes_of_it))
    with pytest.raises(WireError):
        incoming.take(header, None if body is None else memoryview(body))


@pytest.mark.parametrize("what", range(len(PAYLOADS)))
def test_a_payload_that_nobody_sends_in_this_run(what: int) -> None:
    """Without a model, or without exchanges, or with an exchange that moves nothing."""
    for sizes in (Sizes(), Sizes(data=(0,))):
        for size in (0, 1):
            with pytest.raises(WireError):
                Incoming(sizes).take(Chunk(0, what, 0, 0, size, 0), memoryview(b"1"))


# ---- Sizes


WHOLE = {
    "of another exchange": (DATA, 0, 1, 4, "a message Data of 11 bytes; by the layout it has 4"),
    "data": (DATA, 0, 0, 11, "by the layout it has 11"),
    "a proposal": (PROPOSE, 1, 0, 11, "a message Propose of"),
    "an answer": (ACCEPT, 1, 0, 11, "a message Accept of"),
    "a model": (MODEL, 0, 0, 6, "a message Model of"),
    "parameters": (GLOBAL, 0, 0, 7, "a message Global of"),
    "a piece": (PIECE, 0, 0, 5, "a message Piece of"),
    "a shorter piece": (PIECE, 0, 1, 4, "a message Piece of"),
    "a sum": (PIECE, 0, (STEPS + 1) * PIECES, 3, "a message Piece of"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_push_has_exactly_the_bytes_of_the_own_layout(name: str) -> None:
    what, first, second, right, words = WHOLE[name]
    for size in {0, 1, 3, 4, 5, 6, 7, 10, 11, 12, 2**40, 2**62} - {right}:
        incoming = Incoming(SIZES)
        with pytest.raises(WireError, match=words if size == 11 else "a message"):
            incoming.take(Chunk(0, what, first, second, size, 0), memoryview(b"1"))
        assert incoming._buffer == b""
    incoming = Incoming(SIZES)
    incoming.take(Chunk(0, what, first, second, right, 0), memoryview(b"1"))
    assert len(incoming._buffer) == right


@pytest.mark.parametrize("size", [1, 2, 8, 9])
def test_a_push_takes_the_bytes_that_it_says_up_to_the_bound(size: int) -> None:
    incoming = Incoming(SIZES)
    message = incoming.take(Chunk(0, PUSH, 3, 2, size, 0), memoryview(b"1"))
    assert (message == Push(3, 2, b"1")) == (size == 1)
    assert len(incoming._buffer) == (0 if size == 1 else size)


@pytest.mark.parametrize("size", [0, 1, 8, 10, 2**40])
def test_a_push_that_is_not_sparse_has_the_one_size_of_the_layout(size: int) -> None:
    incoming = Incoming(replace(SIZES, is_ragged=False))
    with pytest.raises(WireError, match=f"a message Push of {size} bytes"):
        incoming.take(Chunk(0, PUSH, 1, 0, size, 0), memoryview(b"1"))
    assert incoming._buffer == b""


@pytest.mark.parametrize("size", [0, 10, 2**40, 2**62])
def test_a_push_beyond_the_bound_takes_nothing(size: int) -> None:
    incoming = Incoming(SIZES)
    with pytest.raises(WireError, match=f"a message Push of {size} bytes; by the layout it has 1 to 9"):
        incoming.take(Chunk(0, PUSH, 1, 0, size, 0), memoryview(b"1"))
    assert incoming._buffer == b""


@pytest.mark.parametrize(("step", "piece"), [(1, 0), (0, 2), (0, PIECES - 1), (2, 0), (STEPS - 1, PIECES - 1)])
def test_a_piece_that_the_layout_does_not_have(step: int, piece: int) -> None:
    with pytest.raises(WireError, match=f"piece {piece} of step {step} of scatter, which there is not"):
        Incoming(SIZES).take(Chunk(0, PIECE, 0, step * PIECES + piece, 4, 0), memoryview(b"1"))


@given(
    phase=st.sampled_from(["scatter", "gather"]),
    step=st.integers(0, STEPS - 1),
    piece=st.integers(0, PIECES - 1),
    round=st.integers(0, 2**62),
)
def test_the_place_of_a_piece_comes_back(phase: str, step: int, piece: int, round: int) -> None:
    asked = []

    def three(*place: object) -> int:
        asked.append(place)
        return 3

    sent = Piece(round, "scatter" if phase == "scatter" else "gather", step, piece, b"sum")
    outgoing = Outgoing()
    outgoing.put(sent)
    [(header, body)] = all_items(outgoing)
    assert body is not None
    arrived, bytes_of_it = decode([encode(header), body])
    assert isinstance(arrived, Chunk)
    assert Incoming(Sizes(pieces=three)).take(arrived, bytes_of_it) == sent
    assert asked == [(phase, step, piece)]


@given(second=st.integers(2 * STEPS * PIECES, 2**62))
def test_a_place_beyond_both_phases_is_not_even_looked_up(second: int) -> None:
    def nothing(*place: object) -> int:
        raise AssertionError(place)

    with pytest.raises(WireError, match="of phase"):
        Incoming(Sizes(pieces=nothing)).take(Chunk(0, PIECE, 0, second, 3, 0), memoryview(b"sum"))


@pytest.mark.parametrize(("step", "piece"), [(STEPS, 0), (0, PIECES), (-1, 0), (0, -1)])
def test_a_piece_that_has_no_place_in_a_header_is_not_sent(step: int, piece: int) -> None:
    with pytest.raises(AssertionError, match="than a"):
        Outgoing().put(Piece(0, "gather", step, piece, b"sum"))


places = st.integers(0, 3) | st.builds(
    lambda phase, step, piece: (phase * STEPS + step) * PIECES + piece,
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)
sizes_told = st.integers(0, 12) | st.integers(0, 2**62)
items = st.builds(
    Chunk,
    st.integers(0, 2),
    st.integers(0, len(PAYLOADS)),
    st.integers(0, 1),
    places,
    sizes_told,
    st.sampled_from([0, 4, 8]),
) | st.builds(Note, st.integers(0, 2), st.integers(0, len(NOTES)), st.integers(0, 1))


@settings(deadline=None, print_blob=True, max_examples=300)
@given(
    items=st.lists(st.tuples(items, st.binary(min_size=1, max_size=12)), max_size=6),
    model_bytes=st.integers(0, 6),
    push_bytes=st.integers(0, 9),
)
def test_any_items_are_messages_of_their_size_or_a_wire_error(
    items: list[tuple[stream.Numbered, bytes]], model_bytes: int, push_bytes: int
) -> None:
    incoming = Incoming(Sizes((11, 0, 1), model_bytes, push_bytes, 7, piece_bytes, is_ragged=True))
    try:
        for header, body in items:
            match incoming.take(header, memoryview(body) if isinstance(header, Chunk) else None):
                case Data(_, exchange, payload):
                    assert len(payload) == (11, 0, 1)[exchange] > 0
                case Model(_, payload):
                    assert len(payload) == model_bytes > 0
                case Propose(_, _, payload) | Accept(_, payload):
                    assert len(payload) == 11
                case Push(_, _, payload):
                    assert 1 <= len(payload) <= push_bytes
                case Global(_, payload, _):
                    assert len(payload) == 7
                case Piece(_, phase, step, piece, payload):
                    assert len(payload) == PIECE_BYTES[phase, step, piece]
            assert len(incoming._buffer) <= 11
    except WireError:
        pass


# ---- Lost, repeated and broken


messages = st.lists(
    st.builds(data, st.integers(0, 2**62), st.integers(0, 2))
    | st.builds(Done, st.integers(0, 9))
    | st.builds(Skip, st.integers(0, 9))
    | st.builds(Resume, st.integers(0, 9))
    | st.builds(Busy, st.integers(0, 9))
    | st.just(Fetch())
    | st.builds(Model, st.integers(0, 9), st.binary(min_size=MODEL_BYTES, max_size=MODEL_BYTES))
    | st.builds(Propose, st.integers(0, 9), st.integers(0, 9), st.binary(min_size=11, max_size=11))
    | st.builds(Accept, st.integers(0, 9), st.binary(min_size=11, max_size=11))
    | st.builds(Pull, st.none() | st.integers(0, 2**62 - 1))
    | st.builds(Broken, st.integers(0, 9))
    | st.builds(Push, st.integers(0, 2**62), st.integers(0, 2**62), st.binary(min_size=1, max_size=PUSH_BYTES))
    | st.builds(Global, st.integers(0, 9), st.binary(min_size=GIVEN_BYTES, max_size=GIVEN_BYTES), st.integers(0, 9))
    | st.sampled_from([Piece(2, "gather", 1, 0, b"sum"), Piece(2**62, "scatter", 0, 0, b"first")]),
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
