"""What a right neighbour in a ring leaves without acknowledgement: it never comes near the bound of the links."""

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.network.links import most_messages
from peer.network.sizes import Sizes
from peer.network.stream import Incoming, Item, Outgoing
from peer.network.wire import Ack
from peer.protocol.messages import (
    Assemble,
    Assembled,
    Divide,
    Divided,
    Effect,
    Event,
    Finish,
    PeerJoined,
    Received,
    Reduce,
    Reduced,
    Send,
    Train,
    Trained,
)
from peer.protocol.ring import Ring

ROUNDS = 4


def sent_in_a_round(me: int, pieces: tuple[int, ...]) -> int:
    """How many pieces a member sends: "scatter" all but the next one's, "gather" all but those of the one after."""
    n = len(pieces)
    return 2 * sum(pieces) - pieces[(me + 1) % n] - pieces[(me + 2) % n]


class Wire:
    """One direction between two members: items and acknowledgements keep their order in it."""

    def __init__(self) -> None:
        self.outgoing = Outgoing()
        self.incoming = Incoming(Sizes(pieces=lambda phase, step, piece: 1))
        self.under_way: deque[Item | Ack] = deque()
        self.most = 0

    def push(self) -> None:
        self.most = max(self.most, self.outgoing.messages)
        while (item := self.outgoing.ready()) is not None:
            self.under_way.append(item)
            self.outgoing.sent()


class World:
    """A ring of members, each with a shell that does things when the random order of everything comes to it."""

    def __init__(self, pieces: tuple[int, ...], random: Random) -> None:
        n = len(pieces)
        self.pieces = pieces
        self.random = random
        self.members = [Ring(me, ROUNDS, pieces) for me in range(n)]
        self.wires = {(me, other): Wire() for me in range(n) for other in self.members[me].neighbours}
        self.todo: list[deque[Event]] = [deque(PeerJoined(other) for other in m.neighbours) for m in self.members]
        self.finished: list[Finish] = []

    def run(self) -> None:
        for me, member in enumerate(self.members):
            self._carry_out(me, member.start(0.0))
        while True:
            busy: list[int | tuple[int, int]] = [me for me, todo in enumerate(self.todo) if todo]
            busy += [pair for pair, wire in self.wires.items() if wire.under_way]
            if not busy:
                return
            one = self.random.choice(busy)
            if isinstance(one, int):
                self._carry_out(one, self.members[one].handle(self.todo[one].popleft(), 0.0))
            else:
                self._arrive(*one)

    def _arrive(self, sender: int, receiver: int) -> None:
        wire, back = self.wires[sender, receiver], self.wires[receiver, sender]
        arrived = wire.under_way.popleft()
        if isinstance(arrived, Ack):
            back.outgoing.acknowledged(arrived.next)
            back.push()
            return
        message = wire.incoming.take(*arrived)
        back.under_way.append(Ack(wire.incoming.next_wanted))  # at once, ahead of whatever comes of the message
        if message is not None:
            self._carry_out(receiver, self.members[receiver].handle(Received(sender, message), 0.0))

    def _carry_out(self, me: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Train(round):
                    self.todo[me].append(Trained(round, b"x"))
                case Divide(round):
                    self.todo[me].append(Divided(round, tuple((b"x",) * many for many in self.pieces)))
                case Reduce(round, segment, piece):
                    self.todo[me].append(Reduced(round, segment, piece, b"x"))
                case Assemble(round):
                    self.todo[me].append(Assembled(round))
                case Send(to, message):
                    self.wires[me, to].outgoing.put(message)
                    self.wires[me, to].push()
                case Finish():
                    self.finished.append(effect)


@settings(deadline=None, print_blob=True, max_examples=40)
@given(
    pieces=st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any).map(tuple),
    seed=st.integers(0, 2**32 - 1),
)
def test_in_a_ring_never_half_of_the_bound_waits_for_its_acknowledgement(pieces: tuple[int, ...], seed: int) -> None:
    world = World(pieces, Random(seed))
    world.run()
    assert world.finished == [Finish("finished")] * len(pieces)
    for (me, _), wire in world.wires.items():
        assert wire.most <= most_messages(0, sent_in_a_round(me, pieces)) // 2


@pytest.mark.parametrize("members", [2, 3, 7])
def test_what_a_slow_neighbour_leaves_in_a_ring_grows_with_the_pieces(members: int) -> None:
    """A bound that does not count the pieces would sever a right neighbour."""
    pieces = (40,) * members
    world = World(pieces, Random(1))
    world.run()
    most = max(wire.most for wire in world.wires.values())
    assert most_messages(0) < most <= most_messages(0, sent_in_a_round(0, pieces)) // 2
