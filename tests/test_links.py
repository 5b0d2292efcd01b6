"""Links over real sockets: greetings, strangers, broken rules, broken connections, and the end."""

import gc
import os
import socket
import warnings
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from threading import Thread
from time import monotonic
from typing import Any

import pytest
import zmq

from peer.errors import ConfigError
from peer.network.greeting import from_wire
from peer.network.link import LinkEvent
from peer.network.links import FLUSH_S, most_messages
from peer.network.sizes import Sizes
from peer.network.stream import NOTES, PAYLOADS
from peer.network.wire import (
    CHUNK_BYTES,
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
from peer.protocol.messages import (
    Accept,
    Broken,
    Busy,
    Bye,
    Data,
    Done,
    Fetch,
    Global,
    Greeted,
    Heard,
    Heartbeat,
    Message,
    Model,
    Piece,
    Propose,
    Pull,
    Push,
    Received,
    Resume,
    Severed,
    Skip,
)
from tests.link_room import (
    GIVEN_BYTES,
    LATE_S,
    LOOPBACK,
    MODEL_BYTES,
    PAYLOAD_BYTES,
    PIECE_BYTES,
    PIECES,
    PUSH_BYTES,
    A,
    B,
    C,
    Room,
    Side,
    endpoint_of,
    free_endpoint,
    greeting_of,
    payload,
)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.close()


def header_of(frames: list[bytes]) -> Header:
    """The header of a message, its greeting checked."""
    header, _ = decode(frames)
    if isinstance(header, Hello | Welcome):
        return replace(header, greeting=from_wire(header.greeting).to_wire())
    return header


def skip(sequence: int, round: int) -> Note:
    return Note(sequence, NOTES.index(Skip), round)


# ---- Greetings that succeed


def test_two_greet_and_hear_each_other(room: Room) -> None:
    a, b = room.pair()
    a.links.send(B, Data(0, 1, payload(1, 1)))
    b.links.send(A, Done(7))
    b.links.send(A, Skip(9))
    b.links.send(A, Heartbeat(8))
    room.drive(lambda: len(a.messages(B)) == 2 and b.messages(A) and Received(B, Heartbeat(8)) in a.events)
    assert a.messages(B) == [Done(7), Skip(9)]
    assert b.messages(A) == [Data(0, 1, payload(1, 1))]
    assert a.events.count(Greeted(B)) == b.events.count(Greeted(A)) == 1
    assert a.alerts() == b.alerts() == []
    assert a.links.traffic.payload_bytes == PAYLOAD_BYTES[1]
    assert a.links.traffic.wire_bytes > PAYLOAD_BYTES[1]
    assert b.links.traffic.payload_bytes == 0


def test_every_kind_of_message_is_delivered(room: Room) -> None:
    a, b = room.pair()
    sent: list[Message] = [
        *(Resume(1), Fetch(), Model(2, bytes(MODEL_BYTES)), Busy(3), Propose(4, 5, payload(0, 1))),
        *(Accept(6, payload(0, 2)), Data(7, 1, payload(1, 3)), Done(8), Skip(9), Bye(10)),
    ]
    for message in sent:
        a.links.send(B, message)
    room.drive(lambda: len(b.messages(A)) == len(sent))
    assert b.messages(A) == sent
    assert a.links.traffic.payload_bytes == MODEL_BYTES + 2 * PAYLOAD_BYTES[0] + PAYLOAD_BYTES[1]


def test_what_is_said_beside_a_coordinator_and_in_a_ring_is_delivered(room: Room) -> None:
    a, b = room.pair()
    from_worker: list[Message] = [Pull(None), Pull(4), Push(1, 4, bytes(PUSH_BYTES)), Push(2, 5, b"sparse"), Bye(2)]
    from_coordinator: list[Message] = [
        *(Global(5, bytes(GIVEN_BYTES), 1), Broken(3)),
        *(Piece(0, "scatter", 0, 0, bytes(PIECE_BYTES)), Piece(0, "gather", 0, 2, bytes(PIECE_BYTES)), Bye(1)),
    ]
    for message in from_worker:
        a.links.send(B, message)
    for message in from_coordinator:
        b.links.send(A, message)
    room.drive(lambda: len(b.messages(A)) == len(from_worker) and len(a.messages(B)) == len(from_coordinator))
    assert b.messages(A) == from_worker
    assert a.messages(B) == from_coordinator
    assert a.links.traffic.payload_bytes == PUSH_BYTES + len(b"sparse")
    assert b.links.traffic.payload_bytes == GIVEN_BYTES + 2 * PIECE_BYTES


def test_from_each_neighbour_may_come_what_it_is_to_send(room: Room) -> None:
    """A gives parameters to B, which pushes: a push of A, or parameters of B, break the protocol."""
    for sender, wrong in ((A, Push(1, 0, b"push")), (B, Global(1, b"given", 0))):
        a, b = room.side(A, B, sizes=Sizes(push=4)), room.side(B, A, listen=None, sizes=Sizes(given=5))
        b.links.dial(A, endpoint_of(a))
        a.links.send(B, Global(0, b"given", 0))
        b.links.send(A, Push(1, 0, b"push"))
        sides = {A: a, B: b}
        sides[sender].links.send(1 - sender, wrong)
        room.drive(lambda: sides[1 - sender].severed() and a.messages(B) and b.messages(A))  # noqa: B023 - called here
        assert a.messages(B) == [Push(1, 0, b"push")]
        assert b.messages(A) == [Global(0, b"given", 0)]
        name = type(wrong).__name__
        [severed] = sides[1 - sender].severed()
        assert severed.reason == f"it broke the protocol with a message {name}, which nobody sends in this run"
        assert sides[sender].severed() == []


def test_who_dials_may_come_first(room: Room) -> None:
    b = room.side(B, A, listen=None)
    endpoint = free_endpoint()
    b.links.dial(A, endpoint)
    b.links.send(A, Done(1))
    room.drive(lambda: b.beats == 3)
    assert b.links.traffic.wire_bytes == 0  # nothing queues up for a peer that is not there
    a = room.side(A, B, listen=endpoint)
    room.drive(lambda: a.messages(B) and b.greeted(A))
    assert a.events.index(Greeted(B)) < a.events.index(Received(B, Done(1)))
    assert b.severed() == []


def test_one_dials_many_and_many_dial_one(room: Room) -> None:
    sides = {A: room.side(A, B, C), B: room.side(B, A, C), C: room.side(C, A, B)}
    for one, other in [(B, A), (C, A), (C, B)]:
        sides[one].links.dial(other, endpoint_of(sides[other]))
    pairs = [(one, other) for one in sides for other in sides if one != other]
    for one, other in pairs:
        sides[one].links.send(other, Done(10 * one + other))
    room.drive(lambda: all(sides[other].messages(one) for one, other in pairs))
    for one, other in pairs:
        assert sides[other].messages(one) == [Done(10 * one + other)]


def test_ipv6(room: Room) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    a, b = room.side(A, B, listen="tcp://[::1]:*"), room.side(B, A, listen=None)
    assert endpoint_of(a).startswith("tcp://[::1]:")
    b.links.dial(A, endpoint_of(a))
    room.drive(lambda: a.greeted(B) and b.greeted(A))


# ---- Greetings that are refused

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "another experiment": (
        {"digest": "d2", "fingerprint": {"seed": "0", "task.lr": "0.1"}},
        "another experiment: task.lr is 0.05 at anna and 0.1 at bela",
    ),
    "another layout": (
        {"layout_digest": "l2", "layout": ["w [3] float32"]},
        "another model layout: w [2] float32 at anna, w [3] float32 at bela",
    ),
    "other code": ({"code": "c2"}, "another version of the user's code: c1 at anna, c2 at bela"),
    "an unknown name": ({"name": "mallory"}, "mallory is not a neighbour that dials anna"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_tells_both_sides_why(room: Room, name: str) -> None:
    change, reason = REFUSALS[name]
    a, b = room.side(A, B), room.side(B, A, listen=None, **change)
    b.links.dial(A, endpoint_of(a))
    room.drive(lambda: a.alerts() and b.alerts() and b.beats > 3)
    name = change.get("name", "bela")
    assert a.alerts() == [f"the greeting of {name} was refused: {reason}"]
    assert b.alerts() == [f"anna: it refuses this peer: {reason}"]
    assert not a.greeted(B)
    assert not b.greeted(A)


def test_another_name_at_the_address(room: Room) -> None:
    """B takes C for A. It is told so, and the right connection of B and C is not disturbed."""
    c, b = room.side(C, B), room.side(B, A, C, listen=None)
    b.links.dial(A, endpoint_of(c))
    b.links.dial(C, endpoint_of(c))
    b.links.send(C, Done(1))
    room.drive(lambda: c.messages(B) and b.alerts() and b.beats > 3)
    c.links.send(B, Done(2))
    room.drive(lambda: b.messages(C))
    assert c.alerts() == ["the greeting of bela was refused: bela looks for anna, and this is cora"]
    assert b.alerts() == ["anna: it refuses this peer: bela looks for anna, and this is cora"]
    assert b.severed() == c.severed() == []


def test_an_impostor_at_the_address(room: Room) -> None:
    """One that answers with another name than the one that was looked for."""
    router = room.raw(zmq.ROUTER)
    router.bind(LOOPBACK)
    b = room.side(B, A, listen=None)
    b.links.dial(A, router.getsockopt_string(zmq.LAST_ENDPOINT))
    room.drive(lambda: router.poll(0))
    route, hello = router.recv_multipart()
    assert header_of([hello]) == Hello(1, 0, "anna", "", greeting_of(B).to_wire())
    router.send_multipart([route, encode(Welcome(1, 0, greeting_of(C).to_wire()))])
    room.drive(lambda: b.alerts())
    words = "anna was expected at this address, and cora answered"
    assert b.alerts() == [f"anna: its greeting was refused: {words}"]
    while (header := header_of(router.recv_multipart()[1:])) == Hello(1, 0, "anna", "", greeting_of(B).to_wire()):
        pass
    assert header == Refuse(words, 0)


def test_a_welcome_to_an_earlier_connection_is_none(room: Room) -> None:
    router = room.raw(zmq.ROUTER)
    router.bind(LOOPBACK)
    b = room.side(B, A, listen=None)
    b.links.send(A, Done(1))
    b.links.dial(A, router.getsockopt_string(zmq.LAST_ENDPOINT))
    room.drive(lambda: router.poll(0))
    route, _ = router.recv_multipart()
    router.send_multipart([route, encode(Welcome(0, 0, greeting_of(A).to_wire()))])
    router.send_multipart([route, encode(Refuse("just to know that it is through", 0))])
    room.drive(lambda: b.alerts())
    assert not b.greeted(A)
    router.send_multipart([route, encode(Welcome(1, 0, greeting_of(A).to_wire()))])
    room.drive(lambda: b.greeted(A))


def test_a_neighbour_that_was_started_anew_before_anything_came_is_welcome(room: Room) -> None:
    a, b = room.pair()
    room.gone(b)
    a.links.send(B, Done(0))
    anew = room.side(B, A, listen=None, session="another")
    anew.links.dial(A, endpoint_of(a))
    room.drive(lambda: anew.messages(A))
    assert anew.messages(A) == [Done(0)]


# ---- Strangers


def test_a_stranger_disturbs_nobody(room: Room) -> None:
    a, b = room.side(A, B), room.side(B, A, listen=None)
    stranger = room.raw(zmq.DEALER)
    stranger.connect(endpoint_of(a))
    random = Random(1)
    stranger.send(b"\x00garbage")
    stranger.send_multipart([encode(Beat(0))] * 3)
    stranger.send_multipart([encode(Chunk(0, 0, 0, 0, 1, 0)), b"x" * CHUNK_BYTES])
    stranger.send(encode(Ack(7)))
    stranger.send(encode(Hello(1, 0, "anna", "", {"name": "bela"})))
    for _ in range(100):
        stranger.send(random.randbytes(random.randrange(100)))
    b.links.dial(A, endpoint_of(a))
    b.links.send(A, Done(1))
    room.drive(lambda: a.messages(B) and len(a.alerts()) >= 4)
    giant = room.raw(zmq.DEALER)
    giant.connect(endpoint_of(a))
    giant.send(bytes(CHUNK_BYTES + 1))
    port = int(endpoint_of(a).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as plain_tcp:
        plain_tcp.sendall(b"GET / HTTP/1.1\r\n\r\n" + random.randbytes(5000))
        b.links.send(A, Done(2))
        room.drive(lambda: len(a.messages(B)) == 2)
    assert a.messages(B) == [Done(1), Done(2)]
    assert not any("524289" in text for text in a.alerts())
    assert len(a.alerts()) <= 8
    assert all(text.startswith("a stranger sent ") and text.isprintable() for text in a.alerts())
    assert a.severed() == []


def test_a_stranger_cannot_use_up_what_is_said_of_neighbours(room: Room) -> None:
    a = room.side(A, B)
    stranger = room.raw(zmq.DEALER)
    stranger.connect(endpoint_of(a))
    for i in range(50):
        stranger.send(encode(Hello(1, 0, "anna", "", greeting_of(B, name=f"mallory {i}").to_wire())))
    room.drive(lambda: len(a.alerts()) == 8 and stranger.poll(0))
    b = room.side(B, A, listen=None, code="c2")
    b.links.dial(A, endpoint_of(a))
    room.drive(lambda: any("c2 at bela" in text for text in a.alerts()))


# ---- Neighbours that break the rules


def intruder(room: Room, a: Side) -> "zmq.Socket[bytes]":
    """A socket that A takes for B."""
    raw = room.raw(zmq.DEALER)
    raw.connect(endpoint_of(a))
    raw.send(encode(Hello(1, 0, "anna", "", greeting_of(B).to_wire())))
    room.drive(lambda: a.greeted(B))
    assert header_of(raw.recv_multipart()) == Welcome(1, 0, greeting_of(A).to_wire())
    return raw


BREAKS: dict[str, list[bytes]] = {
    "garbage": [b"garbage"],
    "three frames": [encode(Beat(0)), b"", b""],
    "an empty frame": [b""],
    "an acknowledgement of what was never sent": [encode(Ack(5))],
    "a chunk of no exchange": [encode(Chunk(0, 0, 0, 9, 1, 0)), b"x"],
    "a chunk beyond the message": [encode(Chunk(0, 0, 0, 1, 1000, 0)), bytes(1001)],
    "a payload of no kind": [encode(Chunk(0, len(PAYLOADS), 0, 0, 1, 0)), b"x"],
    "a model beyond the model": [encode(Chunk(0, 1, 0, 0, MODEL_BYTES, MODEL_BYTES)), b"x"],
    "a model of another size": [encode(Chunk(0, 1, 0, 0, MODEL_BYTES + 1, 0)), b"x"],
    "a push beyond the bound": [encode(Chunk(0, PAYLOADS.index(Push), 1, 0, 2**40, 0)), b"x"],
    "a piece that there is not": [encode(Chunk(0, PAYLOADS.index(Piece), 0, PIECES, PIECE_BYTES, 0)), b"x"],
    "a note of no kind": [encode(Note(0, len(NOTES), 0))],
    "a skip with bytes": [encode(skip(0, 0)), b"x"],
    "another name": [encode(Hello(2, 0, "anna", "", greeting_of(C).to_wire()))],
    "no greeting": [encode(Hello(2, 0, "anna", "", {}))],
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_neighbour_that_breaks_the_protocol_is_severed_once(room: Room, name: str) -> None:
    a = room.side(A, B, C)
    raw = intruder(room, a)
    raw.send_multipart(BREAKS[name])
    raw.send_multipart(BREAKS[name])
    raw.send(encode(Beat(1)))
    room.drive(lambda: a.severed())
    assert [event.peer for event in a.severed()] == [B]
    assert a.severed()[0].reason.startswith("it broke the protocol with ")
    a.links.turn_away(B, a.severed()[0].reason)
    raw.send(encode(Beat(2)))
    while not isinstance(header := header_of(raw.recv_multipart()), Refuse):
        pass
    assert "bela was counted as lost by anna (it broke the protocol" in header.reason


def test_a_neighbour_that_acknowledges_nothing_is_severed_and_no_memory_grows(room: Room) -> None:
    a = room.side(A, B)
    intruder(room, a)
    for round in range(1000):
        a.links.send(B, Data(round, 1, payload(1, 0)))
    room.drive(lambda: a.severed())
    assert a.severed() == [Severed(B, "it acknowledges nothing of what it is sent")]
    assert a.links._links[B].outgoing.messages == most_messages(2, PIECES)
    assert a.links.traffic.payload_bytes == most_messages(2, PIECES) * PAYLOAD_BYTES[1]


def test_a_skip_counts_only_from_whom_is_trusted(room: Room) -> None:
    """Neither from a stranger, nor before the greeting is answered, nor after the neighbour broke the protocol."""
    a, b = room.side(A, B), room.side(B, A, listen=None)
    stranger, router = room.raw(zmq.DEALER), room.raw(zmq.ROUTER)
    stranger.connect(endpoint_of(a))
    stranger.send(encode(skip(0, 0)))
    router.bind(LOOPBACK)
    b.links.dial(A, router.getsockopt_string(zmq.LAST_ENDPOINT))
    room.drive(lambda: router.poll(0))
    route, _ = router.recv_multipart()
    router.send_multipart([route, encode(skip(0, 0))])  # ahead of the welcome
    router.send_multipart([route, encode(Welcome(1, 0, greeting_of(A).to_wire()))])
    router.send_multipart([route, encode(skip(0, 1))])
    room.drive(lambda: b.messages(A))
    router.send_multipart([route, b"garbage"])
    router.send_multipart([route, encode(skip(1, 2))])
    router.send_multipart([route, encode(Refuse("just to know that it is through", 0))])
    room.drive(lambda: b.severed() and b.alerts())
    assert b.messages(A) == [Skip(1)]
    raw = intruder(room, a)
    raw.send(encode(skip(0, 5)))
    room.drive(lambda: a.messages(B))
    assert a.messages(B) == [Skip(5)]


def test_what_a_neighbour_says_twice_or_too_early_changes_nothing(room: Room) -> None:
    a = room.side(A, B)
    raw = intruder(room, a)
    raw.send_multipart([encode(Chunk(5, 0, 2**60, 1, 1000, 0)), b"x"])  # after a gap
    raw.send(encode(Hello(1, 0, "anna", "", greeting_of(B).to_wire())))
    raw.send(encode(Beat(2**60)))
    room.drive(lambda: a.heartbeats(B))
    assert a.messages(B) == []
    assert a.severed() == []
    assert a.events.count(Greeted(B)) == 1


# ---- Large messages and broken connections


def test_a_large_message_arrives_intact_and_heartbeats_overtake_its_end(room: Room) -> None:
    a, b = room.pair()
    there, back = Data(0, 0, payload(0, 1)), Data(0, 0, payload(0, 2))
    a.links.send(B, replace(there, payload=memoryview(there.payload)))
    b.links.send(A, back)
    a.links.send(B, Heartbeat(77))
    b.links.send(A, Heartbeat(77))
    room.drive(lambda: a.messages(B) and b.messages(A))
    assert b.messages(A) == [there]
    assert a.messages(B) == [back]
    assert b.events.index(Received(A, Heartbeat(77))) < b.events.index(Received(A, there))
    assert a.events.index(Received(B, Heartbeat(77))) < a.events.index(Received(B, back))


def test_every_part_of_a_large_message_is_a_sign_of_life(room: Room) -> None:
    """On a slow line heartbeats wait behind parts: the last of them must not be the first thing that is heard."""
    a, b = room.pair()
    there = Data(0, 0, payload(0, 1))
    a.links.send(B, replace(there, payload=memoryview(there.payload)))
    room.drive(lambda: b.messages(A))
    before = b.events[: b.events.index(Received(A, there))]
    assert before.count(Heard(A)) >= len(there.payload) // CHUNK_BYTES - 1


@pytest.mark.parametrize("seed", range(3))
def test_everything_arrives_once_though_the_connection_is_cut_again_and_again(room: Room, seed: int) -> None:
    random = Random(seed)
    a, b = room.side(A, B), room.side(B, A, listen=None)
    proxy = room.proxy(endpoint_of(a))
    b.links.dial(A, proxy.endpoint)
    proxy.cut_after = [random.randrange(2000, 3_000_000) for _ in range(4)]
    there: list[Message] = [Data(0, 0, payload(0, 1)), Skip(0), Data(1, 1, payload(1, 2)), Data(1, 0, payload(0, 3))]
    back: list[Message] = [Data(0, 1, payload(1, 4)), Data(0, 0, payload(0, 5)), Done(0), Bye(1)]
    for to_b, to_a in zip(there, back, strict=True):
        a.links.send(B, to_b)
        b.links.send(A, to_a)
    room.drive(lambda: len(a.messages(B)) >= 4 and len(b.messages(A)) >= 4 and not proxy.cut_after)
    assert b.messages(A) == there
    assert a.messages(B) == back
    assert proxy.cuts == 4
    assert a.severed() == b.severed() == []
    assert a.alerts() == b.alerts() == []


def test_a_peer_that_vanishes_is_severed_at_the_side_that_dialled(room: Room) -> None:
    a, b = room.pair()
    room.gone(a)
    room.drive(lambda: b.severed())
    assert b.severed()[0] == Severed(A, "its connection broke and its address refuses new ones")


def test_a_cut_that_heals_severs_nobody(room: Room) -> None:
    a, b = room.side(A, B), room.side(B, A, listen=None)
    proxy = room.proxy(endpoint_of(a))
    b.links.dial(A, proxy.endpoint)
    room.drive(lambda: b.greeted(A))
    proxy.cut()
    b.links.send(A, Done(1))
    a.links.send(B, Done(2))
    room.drive(lambda: a.messages(B) and b.messages(A))
    assert b.events.count(Greeted(A)) == 2
    assert b.severed() == []


# ---- The end


def close_in_thread(room: Room, side: Side) -> tuple[Thread, list[float]]:
    """Close links while the rest of the room goes on; the list gets how long it took."""
    room.leave(side)
    room.opened.remove(side.links)
    took_s: list[float] = []

    def close() -> None:
        begun_s = monotonic()
        side.links.close()
        took_s.append(monotonic() - begun_s)

    thread = Thread(target=close)
    thread.start()
    return thread, took_s


@pytest.mark.parametrize("leaver", [A, B], ids=["the side that listens", "the side that dialled"])
def test_a_goodbye_survives_the_close(room: Room, leaver: int) -> None:
    sides = dict(enumerate(room.pair()))
    leaves, stays = sides[leaver], sides[1 - leaver]
    leaves.links.send(1 - leaver, Data(0, 0, payload(0, 1)))
    leaves.links.send(1 - leaver, Bye(1))
    thread, _ = close_in_thread(room, leaves)
    room.drive(lambda: len(stays.messages(leaver)) == 2)
    thread.join()
    assert stays.messages(leaver) == [Data(0, 0, payload(0, 1)), Bye(1)]


def test_a_goodbye_that_is_read_long_after_the_end_is_no_loss(room: Room) -> None:
    """A says goodbye and is gone for good before B looks again. What B then finds is a goodbye, and no break."""
    a, b = room.pair()
    room.leave(b)
    a.links.send(B, Bye(1))
    room.leave(a)
    room.opened.remove(a.links)
    a.links.close()  # waits for the acknowledgement in vain
    refusals = 0
    follow = b.links._lines[A].follow

    def spy(link: Any, drained_s: float) -> bool:
        nonlocal refusals
        refuses = follow(link, drained_s)
        refusals += refuses
        return refuses

    b.links._lines[A].follow = spy  # type: ignore[method-assign]
    room.moving.append(b)
    room.drive(lambda: refusals >= 2)
    assert b.messages(A) == [Bye(1)]
    assert b.severed() == []


def test_a_goodbye_of_who_dialled_is_read_after_its_end_too(room: Room) -> None:
    a, b = room.pair()
    room.leave(a)
    room.leave(b)
    room.opened.remove(b.links)
    b.links.send(A, Done(0))
    b.links.send(A, Bye(1))
    b.links.close()
    room.moving.append(a)
    room.drive(lambda: len(a.messages(B)) == 2)
    assert a.messages(B) == [Done(0), Bye(1)]


def test_both_leave_at_once(room: Room) -> None:
    a, b = room.pair()
    a.links.send(B, Bye(1))
    b.links.send(A, Bye(1))
    room.drive(lambda: a.messages(B) and b.messages(A))
    closing = [close_in_thread(room, side) for side in (a, b)]
    for thread, _ in closing:
        thread.join()
    assert max(took_s for _, (took_s,) in closing) < FLUSH_S + 2.0


def test_close_does_not_wait_long_for_the_dead(room: Room) -> None:
    a, b = room.pair()
    room.leave(b)  # it is there and never answers
    a.links.send(B, Data(0, 0, payload(0, 1)))
    thread, took_s = close_in_thread(room, a)
    thread.join()
    assert FLUSH_S <= took_s[0] < FLUSH_S + 2.0


def test_close_does_not_wait_at_all_for_who_was_counted_as_lost(room: Room) -> None:
    a, b = room.pair()
    room.leave(b)
    a.links.send(B, Data(0, 0, payload(0, 1)))
    a.links.turn_away(B, "silent")
    calls = 0
    poll = a.links.poll

    def spy(timeout_s: float) -> list[LinkEvent]:
        nonlocal calls
        calls += 1
        return poll(timeout_s)

    a.links.poll = spy  # type: ignore[method-assign]
    a.links.close()
    room.opened.remove(a.links)
    assert calls == 0


def test_nothing_is_left_open(room: Room) -> None:
    """As `python -X dev` would say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a, b = room.pair()
        with pytest.raises(ConfigError):
            room.side(A, B, listen=endpoint_of(a))
        for side in (a, b):
            room.gone(side)
        del a, b, side
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


# ---- Addresses, and other descriptors


@pytest.mark.parametrize("listen", ["in use", "tcp://256.0.0.1:*", "nonsense"])
def test_an_address_that_cannot_be_bound(room: Room, listen: str) -> None:
    taken = room.side(A, B)
    with pytest.raises(ConfigError, match="cannot be bound") as caught:
        room.side(B, A, listen=endpoint_of(taken) if listen == "in use" else listen)
    assert caught.value.key == "transport.listen"


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:port"])
def test_an_address_that_cannot_be_dialled(room: Room, address: str) -> None:
    b = room.side(B, A, listen=None)
    with pytest.raises(ConfigError, match="cannot be dialled") as caught:
        b.links.dial(A, address)
    assert caught.value.key == "peers.anna.address"


def test_poll_wakes_up_for_another_descriptor(room: Room) -> None:
    a = room.side(A, B)
    reads, writes = os.pipe()
    try:
        a.links.watch(reads)
        os.write(writes, b"!")
        begun_s = monotonic()
        assert a.links.poll(LATE_S) == []
        assert monotonic() - begun_s < LATE_S / 2
    finally:
        os.close(reads)
        os.close(writes)
