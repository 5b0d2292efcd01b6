"""The last words of links that are closed: they go on while they are taken, and no longer.

Time stands still here but where a test lets it pass, with each look of the side that closes.
"""

from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from peer.network.link import LinkEvent
from peer.network.links import FLUSH_MOST_S, FLUSH_S
from peer.network.stream import WINDOW
from peer.protocol.messages import Bye, Data, Message
from tests.link_room import LATE_S, A, B, C, Room, Side, endpoint_of, payload


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.close()


def close(room: Room, side: Side, passes_s: float, meanwhile: Callable[[], object]) -> int:
    """Close a side; returns how often it has looked. Each time `meanwhile` happens, and so many seconds pass."""
    room.leave(side)
    room.opened.remove(side.links)
    looks, poll = 0, side.links.poll

    def look(timeout_s: float) -> list[LinkEvent]:
        nonlocal looks
        meanwhile()
        looks += 1
        return poll(timeout_s)

    side.links.poll = look  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peer.network.links.monotonic", lambda: passes_s * looks)
        side.links.close()
    return looks


def acknowledges(side: Side, other: Side, peer: int) -> Callable[[], None]:
    """What happens: the other side takes what is there, until an acknowledgement of it has arrived."""
    link = side.links._links[peer]

    def happens() -> None:
        before, begun_s = link.outgoing.acknowledged_until, monotonic()
        while link.outgoing.acknowledged_until == before and link.is_waited_for:
            assert monotonic() - begun_s < LATE_S
            other.step()
            list(side.links._drain())

    return happens


def linked(room: Room, *others: int) -> tuple[Side, ...]:
    """A and others, which have dialled it and greeted it."""
    a = room.side(A, *others)
    sides = [room.side(other, A, listen=None) for other in others]
    for side in sides:
        side.links.dial(A, endpoint_of(a))
    room.drive(lambda: all(a.greeted(other) for other in others) and all(side.greeted(A) for side in sides))
    return (a, *sides)


def test_what_is_taken_slowly_is_not_cut_off(room: Room) -> None:
    """Each acknowledgement comes late, but in time; all of them together take far longer than one may."""
    a, b = linked(room, B)
    room.leave(b)
    sent: list[Message] = [Data(0, 0, payload(0, 1)), Data(1, 0, payload(0, 2)), Bye(2)]
    for message in sent:
        a.links.send(B, message)
    items = a.links._links[B].outgoing._next
    looks = close(room, a, 0.9 * FLUSH_S, acknowledges(a, b, B))
    assert looks > 2  # longer than FLUSH_S, that is, and at most a window each time
    assert items > 2 * WINDOW
    room.moving.append(b)
    room.drive(lambda: len(b.messages(A)) == 3)
    assert b.messages(A) == sent


def test_what_is_taken_too_slowly_has_an_end(room: Room) -> None:
    a, b = linked(room, B)
    room.leave(b)
    passes_s = 0.9 * FLUSH_S
    most_looks = int(FLUSH_MOST_S / passes_s) + 1
    large = payload(0, 1)
    for round in range(22):
        a.links.send(B, Data(round, 0, large))
    assert a.links._links[B].outgoing._next > most_looks * WINDOW
    assert close(room, a, passes_s, acknowledges(a, b, B)) == most_looks
    assert not a.links._links[B].outgoing.is_empty()


def test_nobody_is_waited_for_who_stops_taking_it(room: Room) -> None:
    a, b = linked(room, B)
    room.leave(b)
    large = payload(0, 1)
    for round in range(4):
        a.links.send(B, Data(round, 0, large))
    acknowledge, times = acknowledges(a, b, B), 0

    def twice() -> None:
        nonlocal times
        times += 1
        if times <= 2:
            acknowledge()

    assert close(room, a, FLUSH_S / 4, twice) <= 2 + 4 + 1
    assert not a.links._links[B].outgoing.is_empty()


def test_who_takes_nothing_is_waited_for_no_longer_than_the_others_need(room: Room) -> None:
    a, b, c = linked(room, B, C)
    room.leave(b)
    room.leave(c)
    a.links.send(C, Bye(1))
    sent: list[Message] = [Data(0, 0, payload(0, 1)), Data(1, 0, payload(0, 2)), Bye(2)]
    for message in sent:
        a.links.send(B, message)
    items = a.links._links[B].outgoing._next
    assert 2 < close(room, a, 0.9 * FLUSH_S, acknowledges(a, b, B)) <= items + 2
    assert not a.links._links[C].outgoing.is_empty()
    room.moving.append(b)
    room.drive(lambda: len(b.messages(A)) == 3)
