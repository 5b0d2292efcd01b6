"""A bed of gossip cores and fake links: what one says to another comes in order, and the test says what moves next.

A peer's parameter is one number. Training adds `drift`, mixing sums the terms from the first to the last, and the
next exchange's message is what the last one came to. So the whole bed is a product of matrices, bit for bit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from random import Random
from typing import Literal

from peer.protocol.gossip import LEAD_ROUNDS, Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Data,
    Done,
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
    Shares,
    Skip,
    Train,
    Trained,
)

Matrix = list[list[float]]

Trouble = Literal["kill", "cut", "stop", "babble"]


# ---- The same without a protocol


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


@dataclass(frozen=True)
class Metric:
    """The metric "model": numbers further apart than `threshold` are not mixed for `look_again` rounds.

    `errors` are (who, of whom, round): there the one takes near for far and far for near, as rounding may make it.
    """

    threshold: float
    look_again: int
    errors: frozenset[tuple[PeerId, PeerId, int]] = frozenset()

    def is_far(self, me: PeerId, other: PeerId, round: int, mine: float, theirs: float) -> bool:
        return (abs(theirs - mine) > self.threshold) != ((me, other, round) in self.errors)


def dense(
    matrices: Sequence[Matrix], rounds: int, exchanges: int = 1, metric: Metric | None = None
) -> list[list[float]]:
    """Return the numbers of all peers after each round. Every row is summed in node order."""
    n = len(matrices[0])
    x = [float(i) for i in range(n)]
    away_until: dict[tuple[PeerId, PeerId], int] = {}
    after = []
    for round in range(rounds):
        matrix = matrices[round % len(matrices)]
        x = [x[i] + drift(i, round) for i in range(n)]
        for _ in range(exchanges):
            near = matrix if metric is None else _near(matrix, x, round, metric, away_until)
            x = [weighted_sum([(w, x[j]) for j, w in enumerate(near[i]) if w or j == i]) for i in range(n)]
        after.append(x)
    return after


def _near(
    matrix: Matrix, x: list[float], round: int, metric: Metric, away_until: dict[tuple[PeerId, PeerId], int]
) -> Matrix:
    """Return W in which the weights of those that are too far apart stay with each peer."""
    rows = []
    for i, row in enumerate(matrix):
        others = [j for j, w in enumerate(row) if w and j != i]
        away = [j for j in others if round < away_until.get((i, j), 0)]
        far = [j for j in others if j not in away and metric.is_far(i, j, round, x[i], x[j])]
        away_until.update({(i, j): round + metric.look_again for j in far})
        own = fsum((fsum((row[i], *(row[j] for j in away))), *(row[j] for j in far)))
        rows.append([own if j == i else 0.0 if j in away or j in far else w for j, w in enumerate(row)])
    return rows


def weighted_sum(terms: Sequence[tuple[float, float]]) -> float:
    total = 0.0
    for weight, value in terms:
        total += weight * value
    return total


# ---- The bed


@dataclass
class Bed:
    """Cores, the messages between them, and the work that each has at hand.

    `matrices` are W of each round, in turn. Where columns of W are what sums to 1, a peer sends shares of its number.
    """

    matrices: Sequence[Matrix]
    rounds: int
    exchanges: int = 1
    conserves: Literal["rows", "columns"] = "rows"
    metric: Metric | None = None
    x: list[float] = field(default_factory=list)
    links: dict[tuple[PeerId, PeerId], deque[Message | PeerLost]] = field(default_factory=dict)
    work: dict[PeerId, Event] = field(default_factory=dict)
    dead: set[PeerId] = field(default_factory=set)
    said_bye: set[tuple[PeerId, PeerId]] = field(default_factory=set)  # (who, to whom), and it was heard
    finished: dict[PeerId, str] = field(default_factory=dict)
    alerts: list[tuple[PeerId, Alert]] = field(default_factory=list)
    sent: list[tuple[PeerId, PeerId, Message]] = field(default_factory=list)  # (who, to whom, what)
    said: dict[tuple[int, int, PeerId], float] = field(default_factory=dict)  # what each mixes as its own
    after: dict[PeerId, list[float]] = field(default_factory=dict)  # each one's numbers after each round
    weights: dict[tuple[int, int, PeerId], dict[PeerId, float]] = field(default_factory=dict)  # of what was mixed
    _offered: dict[tuple[int, int, PeerId], set[PeerId]] = field(default_factory=dict)  # to whom data were addressed

    def __post_init__(self) -> None:
        everyone = range(len(self.matrices[0]))
        self.x = [float(i) for i in everyone]
        self.after = {i: [] for i in everyone}
        rounds = [neighbourhoods(matrix) for matrix in self.matrices]
        self.cores = [self._core(i, [here[i] for here in rounds]) for i in everyone]
        for core in self.cores:
            self._carry_out(core.me, core.start(0.0))
            for peer in sorted(core.neighbours):
                self.links[core.me, peer] = deque()

    def _core(self, me: PeerId, here: list[Neighbourhood]) -> Gossip:
        return Gossip(
            me,
            self.rounds,
            lambda round: here[round % len(here)],
            neighbours={peer for around in here for peer in (*around.weights, *around.listeners)},
            exchanges=self.exchanges,
            conserves=self.conserves,
            look_again=self.metric.look_again if self.metric else 1,
        )

    def join_all(self) -> None:
        for core in self.cores:
            for peer in sorted(core.neighbours):
                self.tell(core.me, PeerJoined(peer))

    def history(self) -> list[list[float]]:
        """Return the numbers of all peers after each round, as `dense` does."""
        return [list(x) for x in zip(*self.after.values(), strict=True)]

    @property
    def alive(self) -> set[PeerId]:
        return set(range(len(self.cores))) - self.dead

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

    def run(self, random: Random, *, beats: float = 0.0, until_round: int | None = None) -> None:
        """Do what is possible in a random order in which some links and peers are far slower than others.

        `beats` is how likely after each step some peer tells another that it is alive. Who has come to `until_round`
        does no more work, but hears what others say.
        """
        pairs = [*self.links, *((peer, peer) for peer in range(len(self.cores)))]
        pace = {pair: random.choice([1.0, 1.0, 0.1, 0.001]) for pair in pairs}
        while steps := [pair for pair in self.possible() if not self._rests(*pair, until_round)]:
            self.do(*random.choices(steps, [pace[pair] for pair in steps])[0])
            if self.links and random.random() < beats:
                self.beat(*random.choice(list(self.links)), random)

    def _rests(self, a: PeerId, b: PeerId, until_round: int | None) -> bool:
        return until_round is not None and a == b and self.cores[a].round >= until_round

    def run_through(self, troubles: Sequence[tuple[int, Trouble]], random: Random) -> None:
        """Do what is possible in a random order; a trouble comes before the step of its number."""
        step = 0
        while self.possible() or step <= max((at for at, _ in troubles), default=0):
            for kind in [kind for at, kind in troubles if at == step]:
                self._make(kind, random)
            if steps := self.possible():
                self.do(*random.choice(steps))
            step += 1

    def beat(self, a: PeerId, b: PeerId, random: Random) -> None:
        """One tells another that it is alive. Heartbeats may overtake what was said before."""
        if not {a, b} & (self.dead | self.finished.keys()):
            queue = self.links[a, b]
            queue.insert(random.randint(0, len(queue)), Heartbeat(self.cores[a].round))

    def stop(self, peer: PeerId) -> None:
        """Somebody wants a peer to stop."""
        self.tell(peer, Command("stop"))

    # ---- What goes wrong

    def _make(self, kind: Trouble, random: Random) -> None:
        peer = random.randrange(len(self.cores))
        if kind == "kill":
            self.kill(peer, random)
        elif kind == "stop":
            self.stop(peer)
        elif self.links:
            pair = random.choice(sorted(self.links))
            (self.cut if kind == "cut" else self.babble)(*pair, random)

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

    def babble(self, a: PeerId, b: PeerId, random: Random) -> None:
        """Nonsense comes from a neighbour, and later the two count each other as lost."""
        if {a, b} & self.dead:
            return
        for _ in range(random.randint(1, 3)):
            round = random.choice([0, self.cores[b].round, self.cores[b].round + 1, self.rounds, 2**60])
            data = Data(round, random.randint(0, self.exchanges), 7.0)
            nonsense: list[Message] = [data, Skip(round), Done(round), Bye(round)]
            self.links[a, b].append(random.choice(nonsense))
        self.links[a, b].append(PeerLost(a, "it talks nonsense"))
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
        self._note_offers(core, effects)
        self._carry_out(peer, effects)

    def _check_inbox(self, core: Gossip) -> None:
        for round, exchange, sender in core._inbox:
            assert core.round <= round <= core.round + LEAD_ROUNDS
            assert 0 <= exchange < self.exchanges
            assert sender in core.around(round).weights

    def _note_offers(self, core: Gossip, effects: list[Effect]) -> None:
        """Take note of whom data were addressed to, be they sent or waiting."""
        sent = [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]
        waiting = [(peer, message) for peer, messages in core._outbox.waiting.items() for message in messages]
        for to, message in sent + waiting:
            if isinstance(message, Data):
                self._offered.setdefault((message.round, message.exchange, core.me), set()).add(to)

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Train(round):
                    assert me not in self.work
                    self.x[me] += drift(me, round)
                    self.work[me] = Trained(round, self._payload(me, round))
                case Mix():
                    assert me not in self.work
                    self.work[me] = self._mix(me, effect)
                case Send(to, message):
                    self.sent.append((me, to, message))
                    link = self.links[me, to]
                    if to not in self.dead and not any(isinstance(what, PeerLost) for what in link):
                        link.append(message)
                case Finish(outcome):
                    assert me not in self.finished
                    self.finished[me] = outcome
                case Alert():
                    self.alerts.append((me, effect))

    def _payload(self, me: PeerId, round: int) -> float | Shares:
        if self.conserves == "rows":
            return self.x[me]
        listeners = self.cores[me].around(round).listeners
        return Shares(self.x[me], {peer: share * self.x[me] for peer, share in listeners.items()})

    def _mix(self, me: PeerId, mix: Mix) -> Mixed:
        self._check_mix(me, mix)
        weights = {term.sender: term.weight for term in mix.terms}
        payloads = {term.sender: term.payload for term in mix.terms}
        far = self._too_far(me, mix.round, payloads)
        if far:
            weights[me] = fsum((weights[me], *(weights.pop(peer) for peer in far)))
        at = (mix.round, mix.exchange, me)
        self.weights[at], self.said[at] = weights, payloads[me]
        self.x[me] = weighted_sum([(weight, payloads[peer]) for peer, weight in weights.items()])
        if mix.exchange + 1 < self.exchanges:
            return Mixed(mix.round, mix.exchange, self._payload(me, mix.round), (), far)
        self.after[me].append(self.x[me])
        return Mixed(mix.round, mix.exchange, None, (), far)

    def _too_far(self, me: PeerId, round: int, payloads: dict[PeerId, float]) -> tuple[PeerId, ...]:
        if self.metric is None:
            return ()
        others = [(peer, what) for peer, what in payloads.items() if peer != me]
        return tuple(p for p, what in others if self.metric.is_far(me, p, round, payloads[me], what))

    def _check_mix(self, me: PeerId, mix: Mix) -> None:
        """Each row sums to 1; or each column, which is what a peer keeps and the shares that it offered."""
        row = self.cores[me].around(mix.round)
        weights = {term.sender: term.weight for term in mix.terms}
        assert mix.me == me
        assert me in weights
        assert [term.sender for term in mix.terms] == sorted(weights)
        if self.conserves == "rows":
            assert all(weight == row.weights[peer] for peer, weight in weights.items() if peer != me)
            assert abs(fsum(weights.values()) - fsum(row.weights.values())) < 1e-15
            return
        offered = self._offered.get((mix.round, mix.exchange, me), set())
        column = fsum((row.weights[me], *row.listeners.values()))
        assert all(weight == 1.0 for peer, weight in weights.items() if peer != me)
        assert abs(fsum((weights[me], *(row.listeners[peer] for peer in offered))) - column) < 1e-15
