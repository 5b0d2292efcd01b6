"""Soundings, by which two peers measure how far apart they are, in frames and in the stream."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import WireError
from peer.network.sizes import Sizes
from peer.network.stream import NOTES, Incoming, Outgoing
from peer.network.wire import VERSION, Note, decode, encode
from peer.protocol.messages import Data, Degree, Done, Echo, Measured, Message, Probe

PROBE, DONE = NOTES.index(Probe), NOTES.index(Done)


@pytest.mark.parametrize("message", [Probe(0), Echo(7), Measured(1_234_567), Degree(2**62)])
def test_a_sounding_comes_back(message: Message) -> None:
    outgoing, incoming = Outgoing(), Incoming(Sizes(data=(4,)))
    outgoing.put(message)
    item = outgoing.ready()
    assert item is not None
    header, body = decode([encode(item[0])])
    assert isinstance(header, Note)
    assert incoming.take(header, body) == message


@settings(deadline=None, print_blob=True)
@given(values=st.lists(st.tuples(st.sampled_from([Probe, Echo, Measured, Degree]), st.integers(0, 2**62))))
def test_soundings_keep_their_order(values: list[tuple[type[Probe], int]]) -> None:
    outgoing, incoming = Outgoing(), Incoming(Sizes(data=(4,)))
    messages = [kind(value) for kind, value in values]
    for message in messages:
        outgoing.put(message)
    arrived = []
    while (item := outgoing.ready()) is not None:
        outgoing.sent()
        header, body = item
        arrived.append(incoming.take(header, body))
        outgoing.acknowledged(incoming.next_wanted)
    assert arrived == messages


WRONG = {
    "a negative value": ((0, 2, -1), "value is int or out of range"),
    "a value beyond all bounds": ((0, 2, 2**63), "value is int or out of range"),
    "a fraction": ((0, 2, 1.5), "value is float"),
    "a truth value": ((0, 0, True), "value is bool"),
    "text": ((0, 0, "1"), "value is str"),
    "nothing": ((0, 0, None), "value is NoneType"),
    "a kind that is a name": ((0, "probe", 1), "what is str"),
    "a negative kind": ((0, -1, 1), "what is int or out of range"),
    "a field too few": ((0, 0), "2 fields instead of 3"),
    "a field too many": ((0, 0, 1, 1), "4 fields instead of 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sounding(name: str) -> None:
    fields, words = WRONG[name]
    with pytest.raises(WireError, match=words):
        decode([bytes(msgpack.packb([VERSION, "note", *fields]))])


@pytest.mark.parametrize("kind", [len(NOTES), len(NOTES) + 1, 2**62])
def test_a_sounding_of_a_kind_that_there_is_not(kind: int) -> None:
    with pytest.raises(WireError, match=f"a note of unknown kind {kind}"):
        Incoming(Sizes(data=(4,))).take(Note(0, kind, 1), None)


def test_a_sounding_with_bytes_and_one_in_the_middle_of_a_message() -> None:
    with pytest.raises(WireError, match="second frame"):
        decode([encode(Note(0, PROBE, 1)), b"x"])
    outgoing, incoming = Outgoing(), Incoming(Sizes(data=(1_000_000,)))
    outgoing.put(Data(0, 0, bytes(1_000_000)))
    item = outgoing.ready()
    assert item is not None
    assert incoming.take(*item) is None
    with pytest.raises(WireError, match="cannot follow"):
        incoming.take(Note(1, PROBE, 1), None)


def test_a_sounding_out_of_order_waits_for_its_turn() -> None:
    incoming = Incoming(Sizes(data=(4,)))
    assert incoming.take(Note(1, PROBE, 1), None) is None
    assert incoming.take(Note(0, DONE, 0), None) == Done(0)
    assert incoming.take(Note(1, PROBE, 1), None) == Probe(1)
    assert incoming.take(Note(1, PROBE, 1), None) is None
