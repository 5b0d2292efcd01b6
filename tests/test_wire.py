"""Frames and greetings: right ones come back as they were, and no bytes whatever do more harm than a WireError."""

import tracemalloc
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from peer.errors import WireError
from peer.network.greeting import Greeting, from_wire, plain, refusal
from peer.network.wire import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TEXT_CHARACTERS,
    VERSION,
    Ack,
    Beat,
    Chunk,
    Header,
    Hello,
    Note,
    Refuse,
    Welcome,
    decode,
    encode,
)

numbers = st.integers(0, 2**62)
texts = st.text(max_size=20)
tables = st.dictionaries(texts, texts | numbers | st.lists(texts, max_size=3).map(tuple), max_size=4)
plain_headers = (
    st.builds(Hello, numbers, numbers, texts, texts, tables)
    | st.builds(Welcome, numbers, numbers, tables)
    | st.builds(Refuse, st.text(max_size=TEXT_CHARACTERS), numbers)
    | st.builds(Beat, numbers)
    | st.builds(Ack, numbers)
    | st.builds(Note, numbers, numbers, numbers)
)
chunks = st.builds(Chunk, numbers, numbers, numbers, numbers, numbers, numbers)


@given(header=plain_headers)
def test_a_header_comes_back(header: Header) -> None:
    assert decode([encode(header)]) == (header, None)
    with pytest.raises(WireError, match="second frame"):
        decode([encode(header), b"x"])


@given(chunk=chunks, body=st.binary(min_size=1, max_size=100))
def test_a_chunk_comes_back_with_its_bytes(chunk: Chunk, body: bytes) -> None:
    header, view = decode([encode(chunk), memoryview(body)])
    assert header == chunk
    assert bytes(view or b"") == body
    with pytest.raises(WireError, match="without its bytes"):
        decode([encode(chunk)])


@pytest.mark.parametrize("size", [1, CHUNK_BYTES])
def test_the_smallest_and_the_largest_chunk(size: int) -> None:
    _, body = decode([encode(Chunk(0, 0, 0, 0, 1, 0)), bytes(size)])
    assert body is not None
    assert len(body) == size


@pytest.mark.parametrize("size", [0, CHUNK_BYTES + 1])
def test_chunks_that_are_no_chunks(size: int) -> None:
    with pytest.raises(WireError, match=f"a chunk of {size} bytes"):
        decode([encode(Chunk(0, 0, 0, 0, 1, 0)), bytes(size)])


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_one_frame_or_two(count: int) -> None:
    with pytest.raises(WireError, match=f"{count} frames"):
        decode([encode(Beat(0))] * count)


# ---- Headers that are wrong


def packed(*items: object) -> bytes:
    return bytes(msgpack.packb(items))


WRONG = {
    "nothing": (b"", "not msgpack"),
    "cut off": (encode(Beat(1))[:-1], "not msgpack"),
    "more after the end": (encode(Beat(1)) + b"\x00", "not msgpack"),
    "invalid UTF-8": (b"\x92\xa9earshot-3\xa2\xff\xfe", "not msgpack"),
    "a number": (b"\x07", "another protocol or version"),
    "a map": (bytes(msgpack.packb({"kind": "beat"})), "another protocol or version"),
    "another version": (packed("earshot-2", "beat", 1), "another protocol or version"),
    "no kind": (packed(VERSION), "another protocol or version"),
    "an unknown kind": (packed(VERSION, "shout", 1), "unknown kind 'shout'"),
    "a kind that is no text": (packed(VERSION, ["beat"], 1), "unknown kind"),
    "a field too few": (packed(VERSION, "chunk", 1, 2, 3, 4), "4 fields instead of 6"),
    "a field too many": (packed(VERSION, "beat", 1, 2), "2 fields instead of 1"),
    "a negative number": (packed(VERSION, "beat", -1), "round is int or out of range"),
    "a number beyond all rounds": (packed(VERSION, "ack", 2**63), "next is int or out of range"),
    "a truth value": (packed(VERSION, "beat", True), "round is bool"),
    "a float": (packed(VERSION, "beat", 1.0), "round is float"),
    "a note without its number": (packed(VERSION, "note", 3, 0), "2 fields instead of 3"),
    "a note of a negative round": (packed(VERSION, "note", 3, 0, -1), "note whose value is int or out of range"),
    "a note of a round beyond all rounds": (packed(VERSION, "note", 3, 0, 2**62 + 1), "note whose value is int or out"),
    "a note of a round that is text": (packed(VERSION, "note", 3, 0, "4"), "note whose value is str"),
    "a note of a kind that is text": (packed(VERSION, "note", 3, "skip", 4), "note whose what is str"),
    "a note without a place": (packed(VERSION, "note", None, 0, 4), "note whose sequence is NoneType"),
    "a chunk of a negative kind": (packed(VERSION, "chunk", 0, -1, 0, 0, 1, 0), "chunk whose what is int or out"),
    "a chunk of a kind that is text": (packed(VERSION, "chunk", 0, "data", 0, 0, 1, 0), "chunk whose what is str"),
    "a chunk as it was before it told its size": (packed(VERSION, "chunk", 0, 0, 0, 0, 0), "5 fields instead of 6"),
    "a chunk of a negative size": (packed(VERSION, "chunk", 0, 4, 1, 0, -1, 0), "chunk whose size is int or out"),
    "a chunk of a size beyond all": (packed(VERSION, "chunk", 0, 4, 1, 0, 2**63, 0), "chunk whose size is int or out"),
    "a chunk of a size that is a fraction": (packed(VERSION, "chunk", 0, 4, 1, 0, 1.5, 0), "chunk whose size is float"),
    "a negative incarnation": (packed(VERSION, "hello", 1, -1, "b", "", {}), "hello whose incarnation is int or out"),
    "an incarnation that is text": (packed(VERSION, "welcome", 1, "2", {}), "welcome whose incarnation is str"),
    "an incarnation beyond all": (packed(VERSION, "refuse", "no", 2**62 + 1), "refuse whose incarnation is int or out"),
    "a refusal of no incarnation": (packed(VERSION, "refuse", "no"), "1 fields instead of 2"),
    "a session that is a number": (packed(VERSION, "hello", 1, 0, "b", 7, {}), "hello whose knows is int"),
    "a long session": (packed(VERSION, "hello", 1, 0, "b", "x" * (TEXT_CHARACTERS + 1), {}), "knows is str or out"),
    "nil": (packed(VERSION, "ack", None), "next is NoneType"),
    "a date": (b"\x93\xa9earshot-3\xa4beat\xd6\xff\x00\x00\x00\x01", "round is Timestamp"),
    "a greeting that is no table": (packed(VERSION, "hello", 1, 0, "b", "", [1]), "greeting is tuple"),
    "a greeting with numbers as keys": (packed(VERSION, "welcome", 1, 0, {1: 2}), "not msgpack"),
    "a greeting with bytes as keys": (packed(VERSION, "welcome", 1, 0, {b"a": 2}), "greeting is dict or out of range"),
    "a long reason": (packed(VERSION, "refuse", "x" * (TEXT_CHARACTERS + 1), 0), "reason is str or out of range"),
    "too many items": (packed(*range(257)), "not msgpack"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_header(name: str) -> None:
    frame, words = WRONG[name]
    with pytest.raises(WireError, match=words):
        decode([frame])


def test_a_long_header_is_neither_sent_nor_read() -> None:
    fields = {"text": "x" * HEADER_BYTES}
    with pytest.raises(WireError, match="at most 65536"):
        encode(Welcome(1, 0, fields))
    with pytest.raises(WireError, match="at most 65536"):
        decode([packed(VERSION, "welcome", 1, 0, fields)])
    room = (
        HEADER_BYTES - len(encode(Welcome(1, 0, {"text": ""}))) - 2
    )  # a long text needs two more bytes for its length
    longest = Welcome(1, 0, {"text": "x" * room})
    assert len(encode(longest)) == HEADER_BYTES
    assert decode([encode(longest)]) == (longest, None)


frames = st.binary(max_size=200) | st.builds(lambda tail: packed(VERSION)[1:] + tail, st.binary(max_size=100))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts | st.binary(max_size=5), inner, max_size=5),
    max_leaves=10,
)
kinds = st.sampled_from(["hello", "welcome", "refuse", "beat", "ack", "chunk", "note"]) | texts
near_misses = st.lists(values, max_size=6).flatmap(lambda rest: kinds.map(lambda kind: packed(VERSION, kind, *rest)))


@settings(max_examples=400, deadline=None, print_blob=True)
@given(header=frames | near_misses, body=st.none() | st.binary(max_size=10))
@example(header=b"\xc9\xff\xff\xff\xff\x01", body=None)  # an extension of 4 GB
@example(header=b"\xdd\xff\xff\xff\xff", body=None)  # an array of 4 G items
@example(header=b"\xdf\xff\xff\xff\xff", body=None)
@example(header=b"\xc6\xff\xff\xff\xff", body=None)
def test_any_bytes_are_a_header_or_a_wire_error(header: bytes, body: bytes | None) -> None:
    try:
        found, _ = decode([header] if body is None else [header, body])
        if isinstance(found, Hello | Welcome):
            from_wire(found.greeting)
    except WireError:
        pass


BOMBS = {
    "empty maps": b"\xdd\x00\x0f\xff\xff" + b"\x80" * 2**20,
    "empty maps in a short header": b"\xdc\x01\x00" + b"\x80" * 0x100,
    "maps of maps": b"\x81\x00" * 30_000,
    "arrays of arrays": b"\x91" * HEADER_BYTES,
    "arrays of arrays, and an end": b"\x91" * 60_000 + b"\x00",
    "arrays within bounds, nested": (b"\xdc\x01\x00" * 10_000) + b"\x80" * 30_000,
    "a greeting of empty maps": b"\x95\xa9earshot-3\xa7welcome\x01\x00\x81\xa1x" + b"\xdc\x01\x00" + b"\x80" * 0x100,
    "long lists": b"\xdc\x01\x00" + (b"\xdc\x01\x00" + b"\x80" * 0x100) * 0x100,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_more_memory_than_a_header_may(name: str) -> None:
    decode([encode(Beat(0))])
    tracemalloc.start()
    try:
        with pytest.raises(WireError):  # noqa: PT012 - the last bomb is a header, with a greeting that is none
            header, _ = decode([BOMBS[name]])
            assert isinstance(header, Welcome)
            from_wire(header.greeting)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 80 * HEADER_BYTES


# ---- Greetings

OURS = Greeting(
    name="alice",
    session="s1",
    digest="d1",
    fingerprint={"seed": "0", "task.lr": "0.05"},
    layout_digest="l1",
    layout=["w [2] float32", "b [1] float32"],
    code="c1",
    device="cpu",
    step="fused",
)
THEIRS = replace(OURS, name="bob", session="s2")


def test_a_greeting_comes_back() -> None:
    header, _ = decode([encode(Hello(1, 0, "bob", "", OURS.to_wire()))])
    assert isinstance(header, Hello)
    assert from_wire(header.greeting) == OURS


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7},
        {"name": "x" * 257},
        {"name": "\x1b[2J"},
        {"device": "two\nlines"},
        {"fingerprint": []},
        {"fingerprint": {"seed": 0}},
        {"fingerprint": {b"seed": "0"}},
        {"layout": "w"},
        {"layout": [1]},
        {"layout": None},
        {"session": None},
        {"colour": "red"},
    ],
)
def test_a_greeting_with_something_else_in_it(change: dict[str, Any]) -> None:
    fields = msgpack.unpackb(msgpack.packb({**OURS.to_wire(), **change}), use_list=False)
    with pytest.raises(WireError, match="a greeting"):
        from_wire(fields)


def test_a_greeting_without_something() -> None:
    fields = OURS.to_wire()
    del fields["code"]
    with pytest.raises(WireError, match="other fields"):
        from_wire(fields)


def test_a_greeting_with_a_giant_layout_fits_into_a_header() -> None:
    giant = replace(OURS, layout=[f"layer{i}.{'very' * 100}long [1] float32" for i in range(200)])
    header, _ = decode([encode(Hello(1, 0, "bob", "", giant.to_wire()))])
    assert isinstance(header, Hello)
    theirs = from_wire(header.greeting)
    assert 10 < len(theirs.layout) < 200
    many = replace(OURS, layout=["w"] * 9000)
    assert len(many.to_wire()["layout"]) == 256
    assert giant.layout[: len(theirs.layout)] == theirs.layout
    other = refusal(giant, replace(theirs, name="bob", layout_digest="l2", layout=["w [3] float32"]))
    assert other is not None
    assert "w [3] float32 at bob" in other


REFUSALS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"device": "cuda:0", "step": "plain"}, None),
    (
        {"digest": "d2", "fingerprint": {"seed": "0", "task.lr": "0.1"}},
        "another experiment: task.lr is 0.05 at alice and 0.1 at bob",
    ),
    (
        {"digest": "d2", "fingerprint": {"seed": "1", "topology.p": "0.5"}},
        "another experiment: seed is 0 at alice and 1 at bob; task.lr is 0.05 at alice and not set at bob; "
        "topology.p is not set at alice and 0.5 at bob",
    ),
    ({"digest": "d2"}, "another experiment: the files differ"),
    ({"code": "c2"}, "another version of the user's code: c1 at alice, c2 at bob"),
    (
        {"layout_digest": "l2", "layout": ["w [3] float32", "b [1] float32"]},
        "another model layout: w [2] float32 at alice, w [3] float32 at bob",
    ),
    (
        {"layout_digest": "l2", "layout": ["w [2] float32"]},
        "another model layout: b [1] float32 at alice, nothing more at bob",
    ),
    ({"digest": "d2", "code": "c2", "layout_digest": "l2"}, "another experiment: the files differ"),
]


@pytest.mark.parametrize(("change", "words"), REFUSALS)
def test_refusal(change: dict[str, Any], words: str | None) -> None:
    assert refusal(OURS, replace(THEIRS, **change)) == words


def test_a_refusal_is_short_and_plain_whatever_the_other_side_says() -> None:
    fingerprint = {f"key{i:03}\x1b[2J": "x\n" * 5000 for i in range(900)}
    words = refusal(OURS, replace(THEIRS, digest="d2", fingerprint=fingerprint))
    assert words is not None
    assert words.isprintable()
    assert words.endswith("; and 894 more")
    assert len(words) < 8 * 700
    layout = ["x" * 60_000, "\r\x07"]
    assert len(refusal(OURS, replace(THEIRS, layout_digest="l2", layout=layout)) or "") < 700


def test_plain_text() -> None:
    assert plain("straight Üβ 言葉") == "straight Üβ 言葉"
    assert plain("\x1b[31mred\r\n\u202e") == "?[31mred???"
    assert plain("x" * 9, 3) == "xxx"
