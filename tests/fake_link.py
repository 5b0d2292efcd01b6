"""A bed of gossip cores and fake links: what one says to another comes in order, and the test says what moves next.

A peer's parameter is one number. Training adds `drift`, mixing sums the terms from the first to the last, and the
next exchange's message is what the last one came to. So the whole bed is a product of matrices, bit for bit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from random import Random

from peer.protocol.gossip import LEAD_ROUNDS, Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Effect,
    Event,
    Finish,
    Heartbeat,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Train,
    Trained,
)

Matrix = list[list[float]]


def drift(peer: PeerId, round: int) -> float:
    """What the local steps of a round add."""
    return (peer + 1) / (round + 3)


def neighbourhoods(matrix: Matrix) -> list[Neighbourhood]:
    n = len(matrix)
    return [
        Neighbourhood(
            weights={j: matrix[i][j] for j in range(n) if matrix[i][j] or j == i},
            listeners={j: matrix[j][i] for j in range(n) if j != i and matrix[j][i]},
        )
        for i in range(n)
    ]


def dense(matrix: Matrix, rounds: int, exchanges: int) -> list[float]:
    """The same computation without a protocol: every row summed in node order."""
    n = len(matrix)
    x = [float(i) for i in range(n)]
    for round in range(rounds):
        x = [x[i] + drift(i, round) for i in range(n)]
        for _ in range(exchanges):
            x = [weighted_sum([(w, x[j]) for j, w in enumerate(row) if w or j == i]) for i, row in enumerate(matrix)]
    return x


def weighted_sum(terms: Sequence[tuple[float, float]]) -> float:
    total = 0.0
    for weight, value in terms:
        total += weight * value
    return total


@dataclass
class Bed:
    """Cores, the messages between them, and the work that each has at hand."""

    matrix: Matrix
    rounds: int
    exchanges: int = 1
    x: list[float] = field(default_factory=list)
    links: dict[tuple[PeerId, PeerId], deque[Message | PeerLost]] = field(default_factory=dict)
    work: dict[PeerId, Event] = field(default_factory=dict)
    dead: set[PeerId] = field(default_factory=set)
    said_bye: set[tuple[PeerId, PeerId]] = field(default_factory=set)  # (who, to whom), and it was heard
    finished: dict[PeerId, str] = field(default_factory=dict)
    alerts: list[tuple[PeerId, Alert]] = field(default_factory=list)
    mixes: list[Mix] = field(default_factory=list)

    def __post_init__(self) -> None:
        here = neighbourhoods(self.matrix)
        self.cores = [
            Gossip(i, self.rounds, lambda _, i=i: here[i], exchanges=self.exchanges) for i in range(len(self.matrix))
        ]
        self.x = [float(i) for i in range(len(self.cores))]
        for core in self.cores:
            self._carry_out(core.me, core.start(0.0))
            for peer in sorted(core.neighbours):
                self.links[core.me, peer] = deque()

    def join_all(self) -> None:
        for core in self.cores:
            for peer in sorted(core.neighbours):
                self.tell(core.me, PeerJoined(peer))

    # ---- What may happen next

    def possible(self) -> list[tuple[PeerId, PeerId]]:
        """(a, b): the next of a's messages reaches b. (a, a): a ends the work at hand."""
        return [pair for pair, queue in self.links.items() if queue] + [(peer, peer) for peer in self.work]

    def do(self, a: PeerId, b: PeerId) -> None:
        if a == b:
            self.tell(a, self.work.pop(a))
            return
        what = self.links[a, b].popleft()
        if isinstance(what, PeerLost):
            self.tell(b, what)
            return
        if isinstance(what, Bye):
            self.said_bye.add((a, b))
        self.tell(b, Received(a, what))

    def run(self, random: Random) -> None:
        """Do what is possible in a random order in which some links are far slower than others."""
        pace = {pair: random.choice([1.0, 1.0, 0.1, 0.001]) for pair in self.links}
        while steps := self.possible():
            self.do(*random.choices(steps, [pace.get(pair, 1.0) for pair in steps])[0])

    # ---- What goes wrong

    def beat(self, peer: PeerId) -> None:
        """A peer says that it is alive."""
        for (a, _), queue in self.links.items():
            if a == peer and peer not in self.dead and peer not in self.finished:
                queue.append(Heartbeat(self.cores[peer].round))

    def kill(self, peer: PeerId, random: Random) -> None:
        """A peer dies; each neighbour still gets some of what it had said, and at some time learns of the death."""
        if peer in self.dead:
            return
        self.dead.add(peer)
        self.work.pop(peer, None)
        for other in self.cores[peer].neighbours:
            self.links[other, peer].clear()
            self._break(peer, other, random)

    def cut(self, a: PeerId, b: PeerId, random: Random) -> None:
        """Two neighbours that both live count each other as lost."""
        if not {a, b} & self.dead:
            self._break(a, b, random)
            self._break(b, a, random)

    def _break(self, a: PeerId, b: PeerId, random: Random) -> None:
        """The last of a's messages do not reach b; b counts a as lost unless it has heard a's goodbye."""
        queue = self.links[a, b]
        for _ in range(random.randint(0, len(queue))):
            queue.pop()
        if (a, b) not in self.said_bye and not any(isinstance(what, Bye) for what in queue):
            queue.append(PeerLost(a, "cut off"))

    # ---- Inside

    def tell(self, peer: PeerId, event: Event) -> None:
        if peer in self.dead:
            return
        core = self.cores[peer]
        effects = core.handle(event, 0.0)
        if peer in self.finished:
            assert effects == []
        self._check_inbox(core)
        self._carry_out(peer, effects)

    def _check_inbox(self, core: Gossip) -> None:
        for round, exchange, sender in core._inbox:
            assert core.round <= round <= core.round + LEAD_ROUNDS
            assert 0 <= exchange < self.exchanges
            assert sender in core._around(round).weights

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Train(round):
                    assert me not in self.work
                    self.x[me] += drift(me, round)
                    self.work[me] = Trained(round, self.x[me])
                case Mix(round, exchange):
                    assert me not in self.work
                    self._check_mix(me, effect)
                    self.mixes.append(effect)
                    self.x[me] = weighted_sum([(term.weight, term.payload) for term in effect.terms])
                    is_last = exchange + 1 == self.exchanges
                    self.work[me] = Mixed(round, exchange, None if is_last else self.x[me])
                case Send(to, message):
                    link = self.links[me, to]
                    if to not in self.dead and not any(isinstance(what, PeerLost) for what in link):
                        link.append(message)
                case Finish(outcome):
                    assert me not in self.finished
                    self.finished[me] = outcome
                case Alert():
                    self.alerts.append((me, effect))

    def _check_mix(self, me: PeerId, mix: Mix) -> None:
        senders = [term.sender for term in mix.terms]
        assert mix.me == me
        assert me in senders
        assert senders == sorted(set(senders))
        assert abs(fsum(term.weight for term in mix.terms) - fsum(self.matrix[me])) < 1e-15
