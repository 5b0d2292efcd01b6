"""Links over real sockets: who was lost, or was started anew, comes back in another incarnation, with empty streams."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import zmq

from peer.network.greeting import from_wire
from peer.network.stream import NOTES
from peer.network.wire import Beat, Header, Hello, Note, Refuse, Welcome, decode, encode
from peer.protocol.messages import Bye, Data, Done, PeerJoined, PeerLost, Received, Resume, Severed
from tests.link_room import LOOPBACK, NAMES, A, B, Room, Side, endpoint_of, free_endpoint, greeting_of, payload

BY_EITHER = pytest.mark.parametrize("judge", [A, B], ids=["by the side that listens", "by the side that dialled"])


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.close()


def members(room: Room) -> dict[int, Side]:
    """A and B with a membership each, who have greeted; B has dialled."""
    a, b = room.member(A, B), room.member(B, A, listen=None)
    b.links.dial(A, endpoint_of(a))
    room.drive(lambda: a.greeted(B) and b.greeted(A))
    return {A: a, B: b}


def are_back(sides: dict[int, Side], incarnation: int = 1) -> Callable[[], bool]:
    return lambda: all(sides[peer].greeted(1 - peer, incarnation) for peer in (A, B))


def check_a_fresh_exchange(room: Room, sides: dict[int, Side]) -> None:
    """Both speak and are heard, and nothing else is."""
    for side in sides.values():
        side.events.clear()
    for peer, side in sides.items():
        side.links.send(1 - peer, Resume(70 + peer))
    room.drive(lambda: all(sides[peer].messages(1 - peer) for peer in (A, B)))
    assert sides[A].messages(B) == [Resume(70 + B)]
    assert sides[B].messages(A) == [Resume(70 + A)]
    assert sides[A].severed() == sides[B].severed() == []


# ---- Counted as lost


@BY_EITHER
def test_who_is_wrongly_counted_as_lost_is_told_so_and_comes_back(room: Room, judge: int) -> None:
    sides = members(room)
    other = 1 - judge
    sides[judge].tell(PeerLost(other, "silent for 5.1 s"))
    sides[judge].links.send(other, Done(0))
    sides[other].links.send(judge, Done(0))
    room.drive(are_back(sides))
    words = f"{NAMES[other]} was counted as lost by {NAMES[judge]} (silent for 5.1 s)"
    reason = f"it refuses this peer: {words}"
    assert sides[other].severed() == [Severed(judge, reason)]
    assert sides[judge].severed() == []
    assert sides[other].told == [PeerJoined(judge), PeerLost(judge, reason), PeerJoined(judge)]
    assert sides[judge].told == [PeerJoined(other), PeerLost(other, "silent for 5.1 s"), PeerJoined(other)]
    assert sides[A].messages(B) == sides[B].messages(A) == []
    assert sides[A].alerts() == sides[B].alerts() == []
    check_a_fresh_exchange(room, sides)


def test_both_count_each_other_as_lost_at_once(room: Room) -> None:
    sides = members(room)
    for peer, side in sides.items():
        side.links.send(1 - peer, Data(0, 0, payload(0, 1)))
        side.tell(PeerLost(1 - peer, "silent for 5.0 s"))
    room.drive(are_back(sides))
    assert sides[A].severed() == sides[B].severed() == []
    assert [len(side.told) for side in sides.values()] == [3, 3]
    check_a_fresh_exchange(room, sides)


@BY_EITHER
def test_again_and_again(room: Room, judge: int) -> None:
    sides = members(room)
    for incarnation in range(1, 4):
        sides[judge].tell(PeerLost(1 - judge, "silent"))
        room.drive(are_back(sides, incarnation))
    assert not any(side.greeted(1 - peer, 4) for peer, side in sides.items())
    check_a_fresh_exchange(room, sides)


@BY_EITHER
def test_half_a_message_of_an_earlier_life_is_void(room: Room, judge: int) -> None:
    sides = members(room)
    other = 1 - judge
    sides[other].links.send(judge, Data(0, 0, payload(0, 1)))
    room.drive(lambda: sides[judge].links._links[other].incoming.next_wanted > 1)  # no more than a window as yet
    assert sides[judge].messages(other) == []
    sides[judge].tell(PeerLost(other, "silent"))
    room.drive(are_back(sides))
    for peer, side in sides.items():
        side.links.send(1 - peer, Data(7, 0, payload(0, 3)))
    room.drive(lambda: all(sides[peer].messages(1 - peer) for peer in (A, B)))
    assert sides[A].messages(B) == sides[B].messages(A) == [Data(7, 0, payload(0, 3))]


def test_turning_away_twice_is_turning_away_once(room: Room) -> None:
    sides = members(room)
    sides[A].tell(PeerLost(B, "silent"))
    sides[A].links.turn_away(B, "silent, as was said")
    room.drive(are_back(sides))
    assert f"{NAMES[B]} was counted as lost by {NAMES[A]} (silent)" in sides[B].severed()[0].reason
    check_a_fresh_exchange(room, sides)


def test_a_loss_of_which_membership_knows_nothing_is_made_up_for(room: Room) -> None:
    sides = members(room)
    sides[A].links.turn_away(B, "on a whim")
    room.drive(are_back(sides))
    assert sides[A].told == [PeerJoined(B), PeerLost(B, "came back in a new life"), PeerJoined(B)]
    check_a_fresh_exchange(room, sides)


@BY_EITHER
def test_who_comes_too_late_is_heard_all_the_same(room: Room, judge: int) -> None:
    endpoint = free_endpoint()
    sides: dict[int, Side] = {}
    for peer in (judge, 1 - judge):
        sides[peer] = room.member(peer, 1 - peer, listen=endpoint if peer == A else None)
        if peer == B:
            sides[B].links.dial(A, endpoint)
        if peer == judge:
            sides[judge].tell(PeerLost(1 - judge, "never heard within 60 s"))
    room.drive(are_back(sides))
    assert sides[judge].told == [PeerLost(1 - judge, "never heard within 60 s"), PeerJoined(1 - judge)]
    assert sides[1 - judge].told == [PeerJoined(judge)]
    assert sides[A].alerts() == sides[B].alerts() == []
    check_a_fresh_exchange(room, sides)


def test_a_network_that_was_cut_and_heals(room: Room) -> None:
    """Both sides have given each other up by then, and one of them twice."""
    a, b = room.member(A, B), room.member(B, A, listen=None)
    sides = {A: a, B: b}
    proxy = room.proxy(endpoint_of(a))
    b.links.dial(A, proxy.endpoint)
    room.drive(lambda: a.greeted(B) and b.greeted(A))
    proxy.cut()
    a.tell(PeerLost(B, "silent"))
    b.tell(PeerLost(A, "silent"))
    room.drive(are_back(sides))
    proxy.cut()
    a.tell(PeerLost(B, "silent"))
    room.drive(are_back(sides, 2))
    assert [type(event) for event in b.told] == [PeerJoined, PeerLost] * 2 + [PeerJoined]
    check_a_fresh_exchange(room, sides)


# ---- Started anew


def test_who_dialled_and_was_started_anew_comes_back(room: Room) -> None:
    sides = members(room)
    sides[A].links.send(B, Done(0))
    room.drive(lambda: sides[B].messages(A) and sides[A].links._links[B].outgoing.is_empty())
    room.gone(sides[B])
    sides[A].links.send(B, Done(1))  # in vain
    sides[B] = room.member(B, A, listen=None, session="another")
    sides[B].links.dial(A, endpoint_of(sides[A]))
    room.drive(are_back(sides))
    assert sides[A].severed() == [Severed(B, "its process was started anew")]
    assert sides[A].told == [PeerJoined(B), PeerLost(B, "its process was started anew"), PeerJoined(B)]
    assert sides[B].told == [PeerJoined(A)]
    assert sides[A].alerts() == sides[B].alerts() == []
    check_a_fresh_exchange(room, sides)


def test_who_was_dialled_and_was_started_anew_comes_back(room: Room) -> None:
    sides = members(room)
    sides[B].links.send(A, Done(0))
    room.drive(lambda: sides[A].messages(B) and sides[B].links._links[A].outgoing.is_empty())
    endpoint = endpoint_of(sides[A])
    room.gone(sides[A])
    sides[A] = room.member(A, B, listen=endpoint, session="another")
    room.drive(lambda: sides[A].told and len(sides[B].told) == 3)
    assert [type(event) for event in sides[B].told] == [PeerJoined, PeerLost, PeerJoined]
    assert sides[A].told == [PeerJoined(B)]
    check_a_fresh_exchange(room, sides)


def test_both_were_started_anew(room: Room) -> None:
    sides = members(room)
    sides[B].tell(PeerLost(A, "silent"))
    room.drive(are_back(sides))
    endpoint = endpoint_of(sides[A])
    for peer in (A, B):
        room.gone(sides[peer])
    sides = {
        A: room.member(A, B, listen=endpoint, session="another a"),
        B: room.member(B, A, listen=None, session="another b"),
    }
    sides[B].links.dial(A, endpoint)
    room.drive(are_back(sides, 0))
    check_a_fresh_exchange(room, sides)


def test_who_was_done_and_was_started_anew_comes_back(room: Room) -> None:
    sides = members(room)
    sides[B].links.send(A, Bye(5))
    room.drive(lambda: sides[A].messages(B) and sides[B].links._links[A].outgoing.is_empty())
    room.gone(sides[B])
    sides[B] = room.member(B, A, listen=None, session="another")
    sides[B].links.dial(A, endpoint_of(sides[A]))
    room.drive(are_back(sides))
    assert sides[A].told == [PeerJoined(B), PeerJoined(B)]
    check_a_fresh_exchange(room, sides)


def test_a_real_refusal_is_said_to_who_comes_back_with_another_experiment(room: Room) -> None:
    sides = members(room)
    sides[A].links.send(B, Done(0))
    room.drive(lambda: sides[B].messages(A) and sides[A].links._links[B].outgoing.is_empty())
    room.gone(sides[B])
    other = room.member(B, A, listen=None, session="another", code="c2")
    other.links.dial(A, endpoint_of(sides[A]))
    room.drive(lambda: sides[A].alerts() and other.alerts())
    assert sides[A].severed() == []  # the one that A knows may still be there
    assert not other.greeted(A)


# ---- Word for word


def header_of(frames: list[bytes]) -> Header:
    header, _ = decode(frames)
    return replace(header, greeting={}) if isinstance(header, Hello | Welcome) else header


def listen(room: Room, raw: "zmq.Socket[bytes]", until: Header) -> list[Header]:
    """Return what a raw DEALER is told until the last of it is this, heartbeats apart."""
    headers: list[Header] = []

    def is_there() -> bool:
        while raw.poll(0):
            headers.append(header_of(raw.recv_multipart()))
        return until in headers

    room.drive(is_there)
    return [header for header in headers if isinstance(header, Welcome | Refuse)]


def hello(incarnation: int, connection: int = 1, session: str = "session of bela", knows: str = "") -> bytes:
    fields = greeting_of(B, session=session).to_wire()
    assert from_wire(fields).session == session
    return encode(Hello(connection, incarnation, "anna", knows, fields))


def done(sequence: int, round: int) -> bytes:
    return encode(Note(sequence, NOTES.index(Done), round))


def test_a_greeting_in_a_greater_number_ends_the_life_at_hand(room: Room) -> None:
    a, raw = room.side(A, B), room.raw(zmq.DEALER)
    raw.connect(endpoint_of(a))
    raw.send(hello(0))
    raw.send(done(0, 1))
    raw.send(hello(5))
    raw.send(done(0, 2))  # of which life? Of none that A has greeted
    raw.send(hello(5))
    room.drive(lambda: a.severed())
    raw.send(hello(5))
    raw.send(done(0, 3))
    raw.send(hello(5))
    room.drive(lambda: a.greeted(B, 5) and len(a.messages(B)) == 2)
    assert a.severed() == [Severed(B, "it had counted this peer as lost")]
    assert a.messages(B) == [Done(1), Done(3)]
    assert listen(room, raw, Welcome(1, 5, {}))[0] == Welcome(1, 0, {})


def test_what_is_said_in_a_life_that_is_over_is_not_heard(room: Room) -> None:
    a, raw = room.side(A, B), room.raw(zmq.DEALER)
    raw.connect(endpoint_of(a))
    raw.send(hello(0))
    room.drive(lambda: a.greeted(B))
    a.links.turn_away(B, "silent")
    raw.send(done(0, 1))
    raw.send(encode(Beat(1)))
    raw.send(hello(0))
    raw.send(hello(1))
    raw.send(done(0, 2))
    room.drive(lambda: a.messages(B))
    assert a.messages(B) == [Done(2)]
    over = Refuse("bela was counted as lost by anna (silent)", 1)
    assert listen(room, raw, Welcome(1, 1, {})) == [Welcome(1, 0, {}), over, over, over, Welcome(1, 1, {})]


def test_a_refusal_that_has_been_met_changes_nothing(room: Room) -> None:
    a, raw = room.side(A, B), room.raw(zmq.DEALER)
    raw.connect(endpoint_of(a))
    raw.send(hello(3))
    raw.send(encode(Refuse("late", 3)))
    raw.send(encode(Refuse("later still", 2)))
    raw.send(done(0, 1))
    room.drive(lambda: a.messages(B))
    assert a.severed() == []
    assert a.alerts() == []


def test_a_greeting_to_a_process_that_is_no_more_is_not_answered_with_a_welcome(room: Room) -> None:
    a, raw = room.side(A, B), room.raw(zmq.DEALER)
    raw.connect(endpoint_of(a))
    raw.send(hello(4, knows="one before"))
    raw.send(hello(5))
    room.drive(lambda: a.greeted(B, 5))
    assert a.severed() == []
    assert listen(room, raw, Welcome(1, 5, {})) == [Refuse("anna was started anew", 5), Welcome(1, 5, {})]


def test_a_welcome_of_another_process_ends_the_life_at_hand(room: Room) -> None:
    b, router = room.side(B, A, listen=None), room.raw(zmq.ROUTER)
    router.bind(LOOPBACK)
    proxy = room.proxy(router.getsockopt_string(zmq.LAST_ENDPOINT))
    b.links.dial(A, proxy.endpoint)
    heard: list[tuple[int, int, str]] = []

    def greets_in(connection: int, incarnation: int) -> bytes:
        """Wait for this Hello; returns its route."""
        routes: list[bytes] = []

        def is_there() -> bool:
            while router.poll(0):
                route, *frames = router.recv_multipart()
                hello = header_of(frames)
                if isinstance(hello, Hello) and (hello.connection, hello.incarnation) == (connection, incarnation):
                    heard.append((hello.connection, hello.incarnation, hello.knows))
                    routes.append(route)
            return bool(routes)

        room.drive(is_there)
        return routes[0]

    route = greets_in(1, 0)
    router.send_multipart([route, encode(Welcome(1, 0, greeting_of(A).to_wire()))])
    router.send_multipart([route, done(0, 1)])
    room.drive(lambda: b.messages(A))
    proxy.cut()
    route = greets_in(2, 0)
    router.send_multipart([route, encode(Welcome(2, 0, greeting_of(A, session="another").to_wire()))])
    room.drive(lambda: b.severed())
    greets_in(2, 1)
    assert b.severed() == [Severed(A, "its process was started anew")]
    assert {knows for connection, _, knows in heard if connection == 1} == {""}
    assert {knows for *number, knows in heard if number == [2, 0]} == {"session of anna"}
    assert {knows for *number, knows in heard if number == [2, 1]} == {""}


def test_a_greeting_that_is_read_late_does_not_take_the_connection_over(room: Room) -> None:
    a = room.side(A, B)
    first, second = room.raw(zmq.DEALER), room.raw(zmq.DEALER)
    second.connect(endpoint_of(a))
    second.send(hello(0, connection=2))
    room.drive(lambda: a.greeted(B))
    first.connect(endpoint_of(a))
    first.send(hello(0, connection=1))
    first.send(encode(Refuse("just to know that it is through", 0)))
    room.drive(lambda: a.alerts())
    second.send(done(0, 1))
    room.drive(lambda: a.messages(B))
    assert not first.poll(0)


def test_who_is_refused_greets_again_at_its_heartbeats_and_not_faster(room: Room) -> None:
    b, router = room.side(B, A, listen=None), room.raw(zmq.ROUTER)
    router.bind(LOOPBACK)
    b.links.dial(A, router.getsockopt_string(zmq.LAST_ENDPOINT))
    greeted_in = []

    def refuses_once_more() -> bool:
        while router.poll(0):
            route, *frames = router.recv_multipart()
            header = header_of(frames)
            assert isinstance(header, Hello)
            greeted_in.append(header.incarnation)
            router.send_multipart([route, encode(Refuse("not yet", header.incarnation + 2))])
        return bool(greeted_in) and greeted_in[-1] >= 8

    room.drive(refuses_once_more)
    assert len(greeted_in) <= b.beats + 1
    assert greeted_in == sorted(greeted_in)
    assert b.severed() == []
    assert b.alerts() == []


def test_what_is_sent_to_who_is_lost_is_lost(room: Room) -> None:
    sides = members(room)
    sides[A].tell(PeerLost(B, "silent"))
    before_bytes = sides[A].links.traffic.payload_bytes
    for round in range(1000):
        sides[A].links.send(B, Data(round, 1, payload(1, 0)))
    assert sides[A].links.traffic.payload_bytes == before_bytes
    assert sides[A].links._links[B].outgoing.is_empty()
    room.drive(are_back(sides))
    sides[A].links.send(B, Done(1))
    room.drive(lambda: Received(A, Done(1)) in sides[B].events)
    assert sides[B].messages(A) == [Done(1)]
