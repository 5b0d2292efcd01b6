"""Two kinds of beds: asynchronous neighbour averaging, and averaging by pairs; drawn from a seed, with troubles.

What each core must mix, and with which staleness, is found anew from what was heard.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum, inf
from random import Random
from typing import Any, Literal

from peer.protocol.asynchronous import Asynchronous
from peer.protocol.messages import (
    Accept,
    Bye,
    Data,
    Done,
    Effect,
    Event,
    Learn,
    Learned,
    Mix,
    Mixed,
    Neighbourhood,
    PeerId,
    Propose,
    Received,
    Send,
    Term,
    Trained,
)
from peer.protocol.pairwise import Pairwise
from tests.async_link import Bed, Steps, drift, neighbourhoods

# ---- Asynchronous neighbour averaging


@dataclass
class Newest:
    """The newest that a peer has heard of another in this life of the two."""

    round: int
    payload: float
    mixes: int
    at_s: float


class AsynchronousBed(Bed):
    """Peers that mix with the newest that they have heard."""

    def __init__(
        self,
        around: list[Neighbourhood],
        rounds: int,
        random: Random | None = None,
        *,
        max_staleness: int | None = None,
        doubles: float = 0.0,
    ) -> None:
        self.rounds = rounds
        self.max_staleness = max_staleness
        self.newest: dict[tuple[PeerId, PeerId], Newest] = {}  # (who heard, whom)
        self.unanswered: dict[tuple[PeerId, PeerId], int] = {}  # (who said, to whom): of which round
        self.said: dict[PeerId, int] = {}  # the round of the newest message of each
        super().__init__(around, random, doubles=doubles)

    def core(self, me: PeerId) -> Asynchronous:
        return Asynchronous(me, self.rounds, lambda _: self.around[me], max_staleness=self.max_staleness)

    def start_of(self, me: PeerId) -> float:
        return float(me)

    def begin(self, me: PeerId, round: int) -> float:
        return float(drift(me, round)) + me / 64

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        if not steps.is_void:
            self.state[me] += steps.found
            self.said[me] = steps.round
        return Trained(steps.round, self.state[me])

    def mixed(self, me: PeerId, mix: Mix) -> Mixed:
        self.state[me] = sum(term.weight * term.payload for term in mix.terms)
        return Mixed(mix.round, mix.exchange, None)

    def forget(self, me: PeerId, peer: PeerId) -> None:
        self.newest.pop((me, peer), None)
        self.unanswered.pop((me, peer), None)

    def notice(self, me: PeerId, event: Event) -> None:
        match event:
            case Received(sender, Data(round, _, payload)):
                known = self.newest.get((me, sender))
                if known is None or round > known.round:
                    mixes = self.mixes[me] + (me in self.work and isinstance(self.work[me], Mix))
                    self.newest[me, sender] = Newest(round, payload, mixes, self.now_s)
            case Received(sender, Done(round)):
                if self.unanswered.get((me, sender)) == round:
                    del self.unanswered[me, sender]
            case Received(sender, Bye(rounds)):
                self.unanswered.pop((me, sender), None)
                if rounds != self.rounds:
                    self.forget(me, sender)

    def check(self, me: PeerId, event: Event, effects: list[Effect]) -> None:
        if any(isinstance(effect, Mix) for effect in effects):
            there = {p for p in self.around[me].listeners if (me, p) in self.sees and (p, me) not in self.heard_bye}
            told = {effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Data)}
            assert told == {peer for peer in there if (me, peer) not in self.unanswered}
        for effect in effects:
            match effect:
                case Send(to, Data(round)):
                    assert (me, to) not in self.unanswered, "two unanswered messages to one listener"
                    assert round == self.said[me], "not the newest message"
                    self.unanswered[me, to] = round
                case Mix():
                    assert effect.terms == self.expected(me, next(t for t in effect.terms if t.sender == me))
                    self.stalenesses += [term.staleness for term in effect.terms if term.sender != me]
        core = self.cores[me]
        assert isinstance(core, Asynchronous)
        for kept in (core._heard, core._newest, core._following, core._unanswered):
            assert kept.keys() <= core.neighbours

    def expected(self, me: PeerId, own: Term) -> tuple[Term, ...]:
        """Return the terms that a mix of now must have, but for the own one's payload."""
        bound = inf if self.max_staleness is None else self.max_staleness
        weights = self.around[me].weights
        terms, kept = [], [weights[me]]
        for peer in sorted(weights.keys() - {me}):
            known = self.newest.get((me, peer))
            if known is None or self.mixes[me] - known.mixes > bound:
                kept.append(weights[peer])
            else:
                age_s = self.now_s - known.at_s
                terms.append(Term(weights[peer], peer, known.payload, self.mixes[me] - known.mixes, age_s))
        return tuple(sorted([*terms, Term(fsum(kept), me, own.payload)], key=lambda term: term.sender))


# ---- Averaging by pairs


class PairwiseBed(Bed):
    """Peers that average two by two. As long as nobody is lost, that keeps the sum of all."""

    def __init__(
        self,
        around: list[Neighbourhood],
        rounds: int,
        random: Random | None = None,
        *,
        partners: Callable[[PeerId, int], list[PeerId]] | None = None,
        doubles: float = 0.0,
    ) -> None:
        self.rounds = rounds
        self.partners = partners or self._any_order
        self.halves: dict[frozenset[PeerId], tuple[PeerId, Any]] = {}  # what one has got of a pair and the other not
        self.total: Any = None
        self.stale = [0 for _ in around]
        self.averaged = [0 for _ in around]
        self.is_own = [False for _ in around]
        self.to_learn: dict[PeerId, Any] = {}
        super().__init__(around, random, doubles=doubles)
        self.total = sum(self.state)

    def _any_order(self, me: PeerId, round: int) -> list[PeerId]:
        neighbours = sorted(self.around[me].listeners)
        return self.random.sample(neighbours, len(neighbours))

    def core(self, me: PeerId) -> Pairwise:
        return Pairwise(me, self.rounds, lambda _: self.around[me], partners=lambda n: self.partners(me, n))

    def begin(self, me: PeerId, round: int) -> Any:
        self.stale[me] = 0
        return super().begin(me, round)

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        if not steps.is_void:
            self.to_learn[me] = steps.found
        return Trained(steps.round, None)

    def learned(self, me: PeerId, learn: Learn) -> Learned:
        if learn.round is not None:
            found = self.to_learn.pop(me)
            self.state[me] += found
            self.total += found
        return Learned(self.state[me])

    def mixed(self, me: PeerId, mix: Mix) -> Mixed:
        own, other = sorted(mix.terms, key=lambda term: term.sender != me)
        assert (own.weight, other.weight) == (0.5, 0.5)
        assert own.payload == self.state[me], "the state has changed since it was said"
        change = (other.payload - own.payload) / 2
        self.state[me] += change
        self.averaged[me] += 1
        self.stale[me] += not self.is_own[me]
        self._match(me, other.sender, change)
        return Mixed(mix.round, mix.exchange, self.state[me])

    def _match(self, me: PeerId, other: PeerId, change: Any) -> None:
        if self.had_trouble:
            return
        pair = frozenset((me, other))
        first, half = self.halves.pop(pair, (None, None))
        if first is None:
            self.halves[pair] = (me, change)
        else:
            assert first == other, "one of the two has averaged twice, the other not at all"
            assert half == -change, "the two did not average the same"
        assert sum(self.state) == self.total + sum(half for _, half in self.halves.values())

    def check(self, me: PeerId, event: Event, effects: list[Effect]) -> None:
        accepts = any(isinstance(effect, Send) and isinstance(effect.message, Accept) for effect in effects)
        for effect in effects:
            match effect:
                case Send(_, Propose(payload=payload) | Accept(payload=payload)):
                    assert me not in self.work, "it says a state that is being changed"
                    assert payload == self.state[me]
                case Mix():
                    self.is_own[me] = not accepts
                case Learn(round, staleness) if round is not None:
                    assert staleness == self.stale[me]
                    self.stalenesses.append(staleness)
        core = self.cores[me]
        assert isinstance(core, Pairwise)
        assert core._line.keys() <= core.neighbours | {me}


# ---- Beds from a seed


def arcs_of(shape: str, peers: int) -> list[tuple[PeerId, PeerId]]:
    """Return the arcs of a graph in which both ends of an edge hear each other."""
    match shape:
        case "path":
            edges = [(i, i + 1) for i in range(peers - 1)]
        case "ring":
            edges = [(i, i + 1) for i in range(peers - 1)] + [(0, peers - 1)] * (peers > 2)
        case "star":  # around one that is lower than some and higher than others
            edges = [(peers // 2, i) for i in range(peers) if i != peers // 2]
        case _:
            edges = [(i, j) for i in range(peers) for j in range(i)]
    return edges + [(b, a) for a, b in edges]


def troubles_of(bed: Bed, rounds: int, random: Random) -> list[tuple[int, str]]:
    """Return some troubles, most of which end soon, and the step before which each comes."""
    span = rounds * sum(3 + 4 * len(here.listeners) for here in bed.around)
    found = []
    for _ in range(random.randint(1, 6)):
        at, kind = random.randint(0, span), random.choice(["cut", "renew", "kill"])
        found.append((at, kind))
        if kind != "renew":
            found.append((at + random.randint(1, 60), "mend" if kind == "cut" else "restart"))
    if random.random() < 0.1:
        found.append((random.randint(0, span), "stop"))
    return found


def bed_of(kind: Literal["asynchronous", "pairwise"], seed: int, rounds: int | None = None) -> Bed:
    """Return a small bed; shape, size, rounds and how much comes twice are drawn from the seed."""
    random = Random(seed)
    shape, peers = random.choice(["path", "ring", "star", "complete"]), random.randint(1, 6)
    arcs = arcs_of(shape, peers)
    rounds, doubles = rounds or random.choice([1, 3, 8, 25]), random.choice([0.0, 0.1, 0.4])
    if kind == "pairwise":
        return PairwiseBed(neighbourhoods(peers, arcs), rounds, random, doubles=doubles)
    one_way = random.choice([0.0, 0.0, 0.3])
    around = neighbourhoods(peers, [arc for arc in arcs if random.random() >= one_way])
    bound = random.choice([None, 0, 1, 3])
    return AsynchronousBed(around, rounds, random, max_staleness=bound, doubles=doubles)


def run_to_the_end(bed: Bed, troubles: Iterable[tuple[int, str]] = ()) -> None:
    """Run until nothing is possible any more; then all that live are done."""
    bed.run(troubles=troubles)
    assert bed.finished.keys() == set(bed.peers) - bed.dead
