"""A bed of ring cores on fake links that delay, double and reorder what they carry.

A member's state is a row of numbers. Training adds something to each, a piece is a tuple of them. What is assembled is
held against the same without a protocol, bit for bit, whenever it happens: so a partial sum never goes unseen.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, Literal

from peer.protocol.messages import (
    Alert,
    Assemble,
    Assembled,
    Bye,
    Command,
    Divide,
    Divided,
    Effect,
    Event,
    Finish,
    Message,
    PeerId,
    PeerJoined,
    PeerLost,
    Piece,
    Received,
    Reduce,
    Reduced,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.ring import Ring, cut

Number = Fraction | float
Row = tuple[Any, ...]
Drift = Callable[[PeerId, int, int], Number]
Move = tuple[Literal["link", "work"], PeerId, PeerId]


# ---- The same without a protocol


def exact(member: PeerId, round: int, element: int) -> Fraction:
    """What the local steps of a round add."""
    return Fraction((member + 2) * (round + 3) * (element + 5) % 11 - 4, member + 1)


def rounded(member: PeerId, round: int, element: int) -> float:
    """The same as floats of very different size, so that every order of summing gives something else."""
    return float(exact(member, round, element)) / 3 * 10.0 ** ((member * 5 + element) % 7)


def in_ring_order(
    members: int, rounds: int, elements: int, drift: Drift, weights: Sequence[float] | None = None
) -> list[Row]:
    """Return the state of all after each round, the start before the first. Each element is summed from the member of
    its segment on."""
    shares = [1.0] * members if weights is None else list(weights)
    total = as_number(sum(shares), drift)
    segments = cut(elements, members, max(elements, 1))
    first = {element: s for s, pieces in enumerate(segments) for piece in pieces for element in piece}
    after: list[Row] = [start(elements, drift)]
    for round in range(rounds):
        row = []
        for element, before in enumerate(after[-1]):
            order = [(first[element] + k) % members for k in range(members)]
            terms = [as_number(shares[m], drift) * (before + drift(m, round, element)) for m in order]
            value = terms[0]
            for term in terms[1:]:
                value = value + term
            row.append(value / total)
        after.append(tuple(row))
    return after


def start(elements: int, drift: Drift) -> Row:
    return tuple(as_number(element + 1, drift) for element in range(elements))


def as_number(x: float, drift: Drift) -> Number:
    return Fraction(x) if drift is exact else float(x)


# ---- The bed


@dataclass
class Item:
    """Something on a link: a message, or the news that the peer has joined or is lost."""

    what: Message | PeerJoined | PeerLost
    is_first: bool = True  # and not the double of one that came already


class RingBed:
    """Cores, the links between them, and the work that each has at hand.

    `doubles` is how likely a message comes twice. Work at hand ends in any order, pieces that are added too.
    """

    def __init__(
        self,
        members: int,
        rounds: int,
        elements: int,
        *,
        piece_elements: int = 2,
        weights: Sequence[float] | None = None,
        drift: Drift = exact,
        round_deadline_s: float = 0.0,
        doubles: float = 0.0,
        random: Random | None = None,
    ) -> None:
        self.members = range(members)
        self.rounds = rounds
        self.drift = drift
        self.doubles = doubles
        self.random = random or Random(0)
        self.segments = cut(elements, members, piece_elements)
        self.expected = in_ring_order(members, rounds, elements, drift, weights)
        self.now_s = 0.0
        self.state: list[Row] = [start(elements, drift) for _ in self.members]
        self.applied = [0 for _ in self.members]  # how many sums
        self.work: dict[PeerId, list[Event]] = {i: [] for i in self.members}
        self.stuck: set[PeerId] = set()  # whose work never ends
        self.dead: set[PeerId] = set()
        self.finished: dict[PeerId, str] = {}
        self.alerts: dict[PeerId, list[Alert]] = {i: [] for i in self.members}
        self.elements_sent: Counter[tuple[PeerId, int]] = Counter()  # (who, in which round)
        self.most_stashed = 0
        self.said_bye: set[tuple[PeerId, PeerId]] = set()  # (who, to whom)
        self.heard_bye: set[tuple[PeerId, PeerId]] = set()  # and it has arrived
        pieces = [len(segment) for segment in self.segments]
        self.cores = [Ring(i, rounds, pieces, weights=weights, round_deadline_s=round_deadline_s) for i in self.members]
        self.links = {(i, j): [Item(PeerJoined(i))] for i in self.members for j in sorted(self.cores[i].neighbours)}
        for core in self.cores:
            self._carry_out(core.me, core.start(0.0))

    # ---- What may happen next

    def possible(self) -> list[Move]:
        moves: list[Move] = [("link", a, b) for (a, b), items in self.links.items() if items]
        return moves + [("work", i, i) for i in self.members if self.work[i] and i not in self.stuck]

    def do(self, move: Move) -> None:
        self.now_s += 1.0
        kind, a, b = move
        if kind == "work":
            self.tell(a, self.work[a].pop(self.random.randrange(len(self.work[a]))))
            return
        items = self.links[a, b]
        item = items[self._which(items)]
        if item.is_first and isinstance(item.what, Piece) and self.random.random() < self.doubles:
            item.is_first = False
        else:
            items[:] = [other for other in items if other is not item]
        if isinstance(item.what, PeerJoined | PeerLost):
            self.tell(b, item.what)
        else:
            self.heard_bye |= {(a, b)} if isinstance(item.what, Bye) else set()
            self.tell(b, Received(a, item.what))

    def _which(self, items: list[Item]) -> int:
        """News stay in order, and a goodbye comes after all that was said before."""
        ends = (k for k, item in enumerate(items) if isinstance(item.what, PeerJoined | PeerLost | Bye))
        window = next(ends, len(items))
        return self.random.randrange(window) if window else 0

    def run(self, troubles: Sequence[tuple[int, Callable[[], None]]] = (), *, until_step: int | None = None) -> int:
        """Do what is possible in a random order, in which some links and members are far slower than others.

        A trouble comes before the step of its number. Returns how many steps it took.
        """
        pace: dict[Move, float] = {}
        due = sorted(troubles, key=lambda trouble: trouble[0])
        step = 0
        while step != until_step and ((moves := self.possible()) or due):
            while due and (due[0][0] <= step or not moves):
                due.pop(0)[1]()
                moves = self.possible()
            if moves:
                chances = [pace.setdefault(move, self.random.choice([1.0, 1.0, 0.1, 0.01])) for move in moves]
                self.do(self.random.choices(moves, chances)[0])
            step += 1
            assert step < 100_000, "it does not come to an end"
        return step

    def tell_the_time(self) -> None:
        """Tell everybody whose deadline has passed, in a random order."""
        for me in self.random.sample(self.members, len(self.members)):
            if self.cores[me].deadline_s <= self.now_s:
                self.tell(me, Tick())

    # ---- What goes wrong

    def kill(self, me: PeerId) -> None:
        """A member dies; each neighbour still gets some of what it had said, and at some time learns of the death."""
        if me in self.dead or me in self.finished:
            return
        self.dead.add(me)
        self.work[me] = []
        for other in sorted(self.cores[me].neighbours):
            self.links[other, me].clear()
            self._break(me, other)

    def cut(self, a: PeerId, b: PeerId) -> None:
        """Two neighbours that both live count each other as lost."""
        if not {a, b} & (self.dead | self.finished.keys()):
            self._break(a, b)
            self._break(b, a)

    def stop(self, me: PeerId) -> None:
        self.tell(me, Command("stop"))

    def _break(self, a: PeerId, b: PeerId) -> None:
        items = self.links[a, b]
        del items[self.random.randint(0, len(items)) :]
        if (a, b) not in self.heard_bye and not any(isinstance(item.what, Bye | PeerLost) for item in items):
            items.append(Item(PeerLost(a, "cut off")))

    # ---- Inside

    def tell(self, me: PeerId, event: Event) -> None:
        if me in self.dead:
            return
        core = self.cores[me]
        was_done = me in self.finished
        effects = core.handle(event, self.now_s)
        assert not was_done or effects == []
        self._check_inbox(core)
        self._carry_out(me, effects)

    def _check_inbox(self, core: Ring) -> None:
        """Of one round at most are pieces stashed, and of all segments but the own."""
        others = sum(core.pieces) - core.pieces[core.me]
        assert len(core._inbox) <= others
        assert len(core._own) + len(core._sums) <= 2 * sum(core.pieces)
        self.most_stashed = max(self.most_stashed, len(core._inbox))

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            assert me not in self.finished, "nothing is asked for after the end"
            match effect:
                case Train(round):
                    assert not self.work[me]
                    trained = tuple(x + self.drift(me, round, k) for k, x in enumerate(self.state[me]))
                    self.work[me].append(Trained(round, trained))
                case Divide(round, weight, payload):
                    scaled = [as_number(weight, self.drift) * x for x in payload]
                    pieces = tuple(tuple(tuple(scaled[k] for k in piece) for piece in s) for s in self.segments)
                    self.work[me].append(Divided(round, pieces))
                case Reduce(round, segment, piece, heard, own):
                    total = tuple(a + b for a, b in zip(heard, own, strict=True))
                    self.work[me].append(Reduced(round, segment, piece, total))
                case Assemble():
                    self._assemble(me, effect)
                case Send(to, message):
                    self._send(me, to, message)
                case Finish(outcome):
                    self.finished[me] = outcome
                    self.work[me] = []
                case Alert():
                    self.alerts[me].append(effect)

    def _assemble(self, me: PeerId, assemble: Assemble) -> None:
        numbers = [x for segment in assemble.pieces for piece in segment for x in piece]
        self.state[me] = tuple(x / as_number(assemble.total, self.drift) for x in numbers)
        self.applied[me] += 1
        assert self.applied[me] == assemble.round + 1
        assert self.state[me] == self.expected[self.applied[me]], "not the whole sum, or not in ring order"
        self.work[me].append(Assembled(assemble.round))

    def _send(self, a: PeerId, b: PeerId, message: Message) -> None:
        assert (a, b) not in self.said_bye, "nothing is said after a goodbye"
        if isinstance(message, Bye):
            self.said_bye.add((a, b))
        if isinstance(message, Piece):
            self.elements_sent[a, message.round] += len(message.payload)
        if b not in self.dead and not any(isinstance(item.what, PeerLost) for item in self.links[a, b]):
            self.links[a, b].append(Item(message))
