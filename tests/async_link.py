"""Beds of cores that do not wait for each other, on fake links that delay, double and reorder what they carry.

A peer's state is one number. Local steps find what is to be added to it, mixing sums the terms. What a core asks for
is held against what the bed itself has seen: every event is checked, and nothing of it is read out of the core.

Two neighbours have lives with each other, which begin when both see that the other has joined and end when one dies or
the link between them is cut. What is said belongs to the life in which its sender sees the other.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import fsum
from random import Random
from typing import Any, Literal

from peer.protocol.independent import Independent
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Bye,
    Command,
    Copied,
    Copy,
    Effect,
    Event,
    Finish,
    Learn,
    Learned,
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

Arcs = Iterable[tuple[PeerId, PeerId]]

Move = tuple[Literal["link", "steps", "state", "copy"], PeerId, PeerId]

LINK_BOUND = 16
"""How many messages, doubles apart, may be on their way from one peer to another at any time."""


@dataclass
class Item:
    """Something on a link: a message, or the news that the peer has joined or is lost."""

    what: Message | PeerJoined | PeerLost
    life: int
    is_first: bool = True  # and not the double of one that came already


@dataclass
class Steps:
    """Local steps that are being done, and what they find."""

    round: int
    found: Any
    is_void: bool = False


def drift(peer: PeerId, round: int) -> Fraction:
    """What the local steps of a round add."""
    return Fraction((peer + 1) * (round + 3) % 7 - 3)


def neighbourhoods(peers: int, arcs: Arcs) -> list[Neighbourhood]:
    """An arc (a, b): b hears a. Everyone gives 1/(degree + 1) to each that it hears, itself included."""
    heard: list[set[PeerId]] = [{i} for i in range(peers)]
    for a, b in arcs:
        heard[b].add(a)
    return [
        Neighbourhood(
            dict.fromkeys(sorted(heard[i]), 1 / len(heard[i])),
            {j: 1 / len(heard[j]) for j in range(peers) if j != i and i in heard[j]},
        )
        for i in range(peers)
    ]


class Bed:
    """Cores, the links between them, and the work that each has at hand."""

    def __init__(self, around: list[Neighbourhood], random: Random | None = None, *, doubles: float = 0.0) -> None:
        self.around = around
        self.random = random or Random(0)
        self.doubles = doubles
        self.now_s = 0.0
        self.peers = range(len(around))
        self.state: list[Any] = [self.start_of(i) for i in self.peers]
        self.steps: dict[PeerId, list[Steps]] = {i: [] for i in self.peers}
        self.work: dict[PeerId, Mix | Learn | Adopt] = {}
        self.copies: Counter[tuple[PeerId, PeerId]] = Counter()
        self.mixes = [0 for _ in self.peers]
        self.dead: set[PeerId] = set()
        self.finished: dict[PeerId, str] = {}
        self.alerts: list[tuple[PeerId, Alert]] = []
        self.adopted: list[tuple[PeerId, Adopt]] = []
        self.stalenesses: list[int] = []
        self.had_trouble = False
        self.links: dict[tuple[PeerId, PeerId], list[Item]] = {}
        self.life: Counter[frozenset[PeerId]] = Counter()
        self.sees: dict[tuple[PeerId, PeerId], int] = {}  # the life in which the one sees the other as alive
        self.apart: set[frozenset[PeerId]] = set()
        self.heard_bye: set[tuple[PeerId, PeerId]] = set()  # (who said it, who heard it)
        self.cores: list[Independent] = [self.core(i) for i in self.peers]
        for a in self.peers:
            self.links.update({(a, b): [Item(PeerJoined(a), 0)] for b in sorted(self.cores[a].neighbours)})
        for core in self.cores:
            self._carry_out(core.me, core.start(self.now_s))

    # ---- What the two kinds of beds differ in

    def core(self, me: PeerId) -> Independent:
        raise NotImplementedError

    def start_of(self, me: PeerId) -> Any:
        return Fraction(me)

    def begin(self, me: PeerId, round: int) -> Any:
        """Return what the local steps of a round find."""
        return drift(me, round)

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        raise NotImplementedError

    def mixed(self, me: PeerId, mix: Mix) -> Mixed:
        raise NotImplementedError

    def learned(self, me: PeerId, learn: Learn) -> Learned:
        raise NotImplementedError

    def notice(self, me: PeerId, event: Event) -> None:
        """See an event before the core does."""

    def check(self, me: PeerId, event: Event, effects: list[Effect]) -> None:
        """Hold what a core asks for against what was seen."""

    def forget(self, me: PeerId, peer: PeerId) -> None:
        """A life of the two is over, or another begins."""

    # ---- What may happen next

    def possible(self) -> list[Move]:
        moves: list[Move] = [("link", a, b) for (a, b), items in self.links.items() if items]
        moves += [("steps", i, i) for i in self.peers if self.steps[i]]
        moves += [("state", i, i) for i in self.work]
        return moves + [("copy", i, to) for i, to in self.copies]

    def do(self, move: Move) -> None:
        self.now_s += 1.0
        kind, a, b = move
        match kind:
            case "link":
                self._deliver(a, b)
            case "steps":
                self._end_steps(a)
            case "state":
                self._end_work(a)
            case "copy":
                self.copies -= Counter({(a, b): 1})
                self.tell(a, Copied(b, self.state[a]))

    def run(self, *, troubles: Iterable[tuple[int, str]] = (), at_most: int = 200_000) -> None:
        """Do what is possible in a random order, in which some links and peers are far slower than others."""
        due = sorted(troubles)
        pace: dict[Move, float] = {}
        step = 0
        while (moves := self.possible()) or due:
            while due and (due[0][0] <= step or not moves):
                self.make(due.pop(0)[1])
                moves = self.possible()
            if moves:
                chances = [pace.setdefault(move, self.random.choice([1.0, 1.0, 0.1, 0.01])) for move in moves]
                self.do(self.random.choices(moves, chances)[0])
            step += 1
            assert step < at_most, "it does not come to an end"

    def _deliver(self, a: PeerId, b: PeerId) -> None:
        items = self.links[a, b]
        item = items[self._which(items)]
        if item.is_first and not isinstance(item.what, PeerJoined | PeerLost) and self.random.random() < self.doubles:
            item.is_first = False
        else:
            items[:] = [other for other in items if other is not item]
        match item.what:
            case PeerJoined():
                self.sees[b, a] = item.life
                self.forget(b, a)
                self.tell(b, item.what)
            case PeerLost():
                self.sees.pop((b, a), None)
                self.forget(b, a)
                self.tell(b, item.what)
            case message:
                if self.sees.get((b, a)) == item.life:
                    if isinstance(message, Bye):
                        self.heard_bye.add((a, b))
                    self.tell(b, Received(a, message))

    def _which(self, items: list[Item]) -> int:
        """News of joining and leaving stay in order, and a goodbye comes after all that was said before."""
        ends = (k for k, item in enumerate(items) if isinstance(item.what, PeerJoined | PeerLost | Bye))
        window = next(ends, len(items))
        return self.random.randrange(window) if window else 0

    def _end_steps(self, me: PeerId) -> None:
        steps = self.steps[me].pop(self.random.randrange(len(self.steps[me])))
        effects = self.tell(me, self.trained(me, steps))
        assert not steps.is_void or effects == [], "what is void was taken"

    def _end_work(self, me: PeerId) -> None:
        match self.work.pop(me):
            case Mix() as mix:
                assert mix.me == me
                assert [term.sender for term in mix.terms] == sorted({term.sender for term in mix.terms})
                assert abs(fsum(term.weight for term in mix.terms) - 1.0) < 1e-12
                self.mixes[me] += 1
                self.tell(me, self.mixed(me, mix))
            case Learn() as learn:
                self.tell(me, self.learned(me, learn))
            case Adopt(round, payload):
                self.state[me] = payload
                self.steps[me] = [steps for steps in self.steps[me] if steps.round != round]
                self.tell(me, Adopted(round))

    # ---- Inside

    def tell(self, me: PeerId, event: Event) -> list[Effect]:
        if me in self.dead:
            return []
        self.notice(me, event)
        was_done = me in self.finished
        effects = self.cores[me].handle(event, self.now_s)
        assert not was_done or effects == []
        self.check(me, event, effects)
        self._carry_out(me, effects)
        return effects

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Train(round):
                    assert me not in self.work, "local steps start from a state that is being changed"
                    assert all(steps.is_void for steps in self.steps[me])
                    self.steps[me].append(Steps(round, self.begin(me, round)))
                case Mix() | Learn() | Adopt():
                    assert me not in self.work, "two changes of the state at a time"
                    self.work[me] = effect
                    if isinstance(effect, Adopt):
                        self._make_void(me, effect)
                case Copy(to):
                    self.copies[me, to] += 1
                case Send(to, message):
                    self._send(me, to, message)
                case Finish(outcome):
                    assert me not in self.finished
                    self.finished[me] = outcome
                    self._fall_silent(me)
                case Alert():
                    self.alerts.append((me, effect))

    def _make_void(self, me: PeerId, adopt: Adopt) -> None:
        self.adopted.append((me, adopt))
        for steps in self.steps[me]:
            steps.is_void = True

    def _send(self, a: PeerId, b: PeerId, message: Message) -> None:
        assert (b, a) not in self.heard_bye, "nothing is said to one that said goodbye"
        pair = frozenset((a, b))
        if pair not in self.apart and self.sees.get((a, b), self.life[pair]) == self.life[pair]:
            self.links[a, b].append(Item(message, self.life[pair]))
            assert sum(item.is_first for item in self.links[a, b]) <= LINK_BOUND

    def _fall_silent(self, me: PeerId) -> None:
        """Whoever does not get the goodbye, because a new life of the two has just begun, learns of it by silence."""
        for peer in sorted(self.cores[me].neighbours):
            items = self.links[me, peer]
            if (me, peer) not in self.heard_bye and not any(isinstance(item.what, Bye) for item in items):
                items.append(Item(PeerLost(me, "silent"), 0))

    # ---- What goes wrong

    def make(self, trouble: str) -> None:
        self.had_trouble = True
        pair = self.random.choice(sorted(self.links))
        peer = self.random.choice(self.peers)
        match trouble:
            case "cut":
                self.cut(*pair)
            case "mend":
                for a, b in sorted(self.links):
                    self.mend(a, b)
            case "renew":
                if not set(pair) & (self.dead | self.finished.keys()):
                    self.cut(*pair, is_noticed=False)
                    self.mend(*pair)
            case "kill":
                self.kill(peer)
            case "restart":
                for peer in sorted(self.dead):
                    self.restart(peer)
            case "stop":
                self.tell(peer, Command("stop"))

    def cut(self, a: PeerId, b: PeerId, *, is_noticed: bool = True) -> None:
        """Two neighbours lose each other: some of what was said still arrives, and then the news."""
        pair = frozenset((a, b))
        if pair in self.apart:
            return
        self.apart.add(pair)
        self.life[pair] += 1
        for who, whom in ((a, b), (b, a)):
            items = self.links[who, whom]
            del items[self.random.randint(0, len(items)) :]
            has_left = (who, whom) in self.heard_bye or any(isinstance(item.what, Bye) for item in items)
            if is_noticed and not has_left:
                items.append(Item(PeerLost(who, "cut off"), 0))

    def mend(self, a: PeerId, b: PeerId) -> None:
        pair = frozenset((a, b))
        if pair in self.apart and not {a, b} & (self.dead | self.finished.keys()):
            self.apart.discard(pair)
            for who, whom in ((a, b), (b, a)):
                self.heard_bye.discard((who, whom))
                self.links[who, whom].append(Item(PeerJoined(who), self.life[pair]))

    def kill(self, me: PeerId) -> None:
        """A peer dies, and each neighbour learns of it at some time."""
        if me in self.dead or me in self.finished:
            return
        self.dead.add(me)
        self.steps[me] = []
        self.work.pop(me, None)
        self.copies = Counter({(who, to): n for (who, to), n in self.copies.items() if who != me})
        for peer in sorted(self.cores[me].neighbours):
            self.cut(me, peer)
            self.links[peer, me].clear()
            self.sees.pop((me, peer), None)

    def restart(self, me: PeerId) -> None:
        """A peer begins again, from its start and in round 0."""
        self.dead.discard(me)
        self.state[me], self.mixes[me] = self.start_of(me), 0
        self.cores[me] = self.core(me)
        for peer in sorted(self.cores[me].neighbours):
            self.forget(me, peer)
            self.heard_bye.discard((peer, me))
            self.mend(me, peer)
            if frozenset((me, peer)) in self.apart:
                self.links[peer, me].append(Item(PeerLost(peer, "never heard"), 0))
        self._carry_out(me, self.cores[me].start(self.now_s))
