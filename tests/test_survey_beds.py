"""Beds of many surveys on a clock, over links that take their time: all agree, nobody hangs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import fsum, inf
from random import Random

import networkx as nx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import topology
from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Echo,
    Effect,
    Event,
    Finish,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Probe,
    Received,
    Send,
    Train,
    Trained,
)
from peer.protocol.survey import PROBES, Rule, Survey
from tests.fake_link import dense, drift, weighted_sum

RULES: list[Rule] = ["metropolis", "uniform", "lazy"]
Pair = tuple[PeerId, PeerId]


@dataclass
class Bed:
    """Cores, links that take their time, and work that does; microseconds are whole, so that nothing is rounded.

    `delays_us` are the one-way delays, of both directions of each edge; a message takes up to `jitter_us` more, and
    none overtakes another. Each peer has a clock of its own, far apart from the others'.
    """

    peers: int
    delays_us: Mapping[Pair, int]
    threshold_us: int
    rule: Rule
    rounds: int
    random: Random
    jitter_us: int = 0
    absent: frozenset[PeerId] = frozenset()
    now_us: int = 0
    dead: set[PeerId] = field(default_factory=set)
    severed: set[Pair] = field(default_factory=set)  # both ways, where one of a pair that lives is lost to the other
    stopped: set[PeerId] = field(default_factory=set)
    finished: dict[PeerId, str] = field(default_factory=dict)
    alerts: list[tuple[PeerId, Alert]] = field(default_factory=list)
    trips_us: dict[frozenset[PeerId], list[int]] = field(default_factory=dict)
    rows: dict[PeerId, Neighbourhood] = field(default_factory=dict)
    _due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _ties: Iterator[int] = field(default_factory=count)
    _arrival_us: dict[Pair, int] = field(default_factory=dict)
    _until_us: dict[Pair, float] = field(default_factory=dict)  # what arrives later does not
    _joined: set[Pair] = field(default_factory=set)
    _parted: set[Pair] = field(default_factory=set)  # (who, of whom): told of a loss, or a goodbye
    _probed_us: dict[Pair, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.x = [float(i) for i in range(self.peers)]
        self.offsets_s = [self.random.uniform(0, 1e5) for _ in range(self.peers)]
        self.cores = [
            Survey(i, frozenset(self.candidates(i)), self.threshold_us / 1000, self.rule, partial(self._gossip, i))
            for i in range(self.peers)
        ]
        self.dead |= self.absent

    def candidates(self, peer: PeerId) -> list[PeerId]:
        return sorted(b for a, b in self.delays_us if a == peer)

    def _gossip(self, me: PeerId, here: Neighbourhood) -> Gossip:
        self.rows[me] = here
        return Gossip(me, self.rounds, lambda _: here)

    def run(self) -> None:
        for core in self.cores:
            if core.me not in self.dead:
                self._carry_out(core.me, core.start(self.now_s(core.me)))
        for a, b in self.delays_us:
            if b in self.absent:
                self.at(60_000_000, partial(self._part, a, PeerLost(b, "never heard")))
            else:
                self.at(self.random.randint(0, 40_000), partial(self._join, a, b))
        while self._due:
            self.now_us, _, action = heappop(self._due)
            action()

    def now_s(self, peer: PeerId) -> float:
        return self.offsets_s[peer] + self.now_us / 1e6

    def at(self, at_us: int, action: Callable[[], None]) -> None:
        heappush(self._due, (at_us, next(self._ties), action))

    def tell(self, peer: PeerId, event: Event) -> None:
        if peer not in self.dead and peer not in self.finished:
            self._carry_out(peer, self.cores[peer].handle(event, self.now_s(peer)))

    # ---- What goes wrong

    def kill(self, peer: PeerId) -> None:
        """A peer dies; each candidate still gets some of what it had said, and at some time learns of the death."""
        if peer not in self.dead and peer not in self.finished:
            self.dead.add(peer)
            for other in self.candidates(peer):
                self._break(peer, other)

    def cut(self, a: PeerId, b: PeerId) -> None:
        """Two that live count each other as lost."""
        if not {a, b} & (self.dead | self.finished.keys()):
            self.severed |= {(a, b), (b, a)}
            self._break(a, b)
            self._break(b, a)

    def stop(self, peer: PeerId) -> None:
        if peer not in self.dead and peer not in self.finished:
            self.stopped.add(peer)
            self.tell(peer, Command("stop"))

    def _break(self, a: PeerId, b: PeerId) -> None:
        last_us = max(self.now_us, self._arrival_us.get((a, b), 0))
        self._until_us[a, b] = min(self._until_us.get((a, b), inf), self.random.randint(self.now_us, last_us))
        self.at(last_us + self.random.randint(0, 100_000), partial(self._part, b, PeerLost(a, "cut off")))

    # ---- Events

    def _join(self, me: PeerId, peer: PeerId) -> None:
        """A neighbour is heard for the first time, be it by its greeting or by a message."""
        if (me, peer) not in self._joined | self._parted and peer not in self.absent:
            self._joined.add((me, peer))
            self.tell(me, PeerJoined(peer))

    def _part(self, me: PeerId, event: PeerLost) -> None:
        """Of one that has said goodbye nobody says that it is lost."""
        if (me, event.peer) not in self._parted:
            self._parted.add((me, event.peer))
            self.tell(me, event)

    def _deliver(self, a: PeerId, b: PeerId, message: Message) -> None:
        if self.now_us > self._until_us.get((a, b), inf) or (b, a) in self._parted:
            return
        self._join(b, a)
        if isinstance(message, Bye):
            self._parted.add((b, a))
        if isinstance(message, Echo):
            self.trips_us.setdefault(frozenset((a, b)), []).append(self.now_us - self._probed_us[b, a])
        self.tell(b, Received(a, message))

    # ---- Effects

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(me, to, message)
                case Train(round):
                    self._work(partial(self._train, me, round))
                case Mix():
                    assert abs(fsum(term.weight for term in effect.terms) - 1.0) < 1e-12
                    self._work(partial(self._mix, me, effect))
                case Finish(outcome):
                    assert me not in self.finished
                    self.finished[me] = outcome
                case Alert():
                    self.alerts.append((me, effect))
                case _:
                    raise AssertionError(effect)

    def _send(self, a: PeerId, b: PeerId, message: Message) -> None:
        if isinstance(message, Probe):
            self._probed_us[a, b] = self.now_us
        soonest_us = self.now_us + self.delays_us[a, b] + self.random.randint(0, self.jitter_us)
        self._arrival_us[a, b] = max(soonest_us, self._arrival_us.get((a, b), 0))
        self.at(self._arrival_us[a, b], partial(self._deliver, a, b, message))

    def _work(self, done: Callable[[], None]) -> None:
        self.at(self.now_us + self.random.randint(0, 30_000), done)

    def _train(self, me: PeerId, round: int) -> None:
        self.x[me] += drift(me, round)
        self.tell(me, Trained(round, self.x[me]))

    def _mix(self, me: PeerId, mix: Mix) -> None:
        self.x[me] = weighted_sum([(term.weight, term.payload) for term in mix.terms])
        self.tell(me, Mixed(mix.round, mix.exchange, None))


@st.composite
def surroundings(draw: st.DrawFn) -> tuple[int, dict[Pair, int]]:
    """Return how many peers there are, and the one-way delays of a random graph, which may fall apart."""
    peers = draw(st.integers(1, 6), label="peers")
    pairs = [(a, b) for a in range(peers) for b in range(a)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    delays = st.integers(0, 40_000)
    return peers, {pair: draw(delays) for a, b in edges for pair in ((a, b), (b, a))}


beds = settings(deadline=None, max_examples=60, print_blob=True)
seeds = st.integers(0, 2**32 - 1)
jitters = st.sampled_from([0, 1_000, 60_000])
rules = st.sampled_from(RULES)
thresholds = st.integers(0, 60_000)


@beds
@given(
    around=surroundings(), threshold_us=thresholds, rule=rules, jitter_us=jitters, rounds=st.integers(1, 3), seed=seeds
)
def test_a_bed_gossips_as_if_its_graph_had_been_known(
    around: tuple[int, dict[Pair, int]], threshold_us: int, rule: Rule, jitter_us: int, rounds: int, seed: int
) -> None:
    """Near are those whose shortest round trip is within the threshold; rows and results are those of their graph."""
    peers, delays_us = around
    bed = Bed(peers, delays_us, threshold_us, rule, rounds, Random(seed), jitter_us)
    bed.run()
    assert bed.finished == dict.fromkeys(range(peers), "finished")
    near = nx.empty_graph(peers)
    for pair, trips_us in bed.trips_us.items():
        a, b = pair
        assert len(trips_us) == 2 * PROBES
        assert bed.cores[a].rtt_us[b] == bed.cores[b].rtt_us[a] == min(trips_us)
        if min(trips_us) <= threshold_us:
            near.add_edge(a, b)
    assert set(map(frozenset, delays_us)) == set(bed.trips_us)
    matrix = topology.mixing_matrix(near, rule).toarray()
    for i, here in bed.rows.items():
        assert here.weights == {j: matrix[i, j] for j in [i, *near[i]]}
        assert here.listeners == {j: matrix[j, i] for j in near[i]}
    assert bed.x == dense([matrix.tolist()], rounds)[-1]
    assert all(core.lost == {} and core.short_rounds == 0 for core in bed.cores)
    someone_is_far = {i for i in range(peers) if near.degree(i) < len(bed.candidates(i))}
    assert sorted(me for me, _ in bed.alerts) == sorted(someone_is_far)
    assert {me for me, alert in bed.alerts if "alone" in alert.text} == {
        i for i in someone_is_far if not near.degree(i)
    }


@pytest.mark.parametrize("seed", range(5))
def test_without_jitter_the_round_trip_is_the_way_there_and_back(seed: int) -> None:
    random = Random(seed)
    delays_us = {(a, b): random.randint(1, 9) * 1000 for a in range(7) for b in range(7) if a != b}
    bed = Bed(7, delays_us, 10_000, "metropolis", 2, random)
    bed.run()
    for (a, b), delay_us in delays_us.items():
        rtt_us = delay_us + delays_us[b, a]
        assert bed.cores[a].rtt_us[b] == rtt_us, f"seed {seed}"
        assert (b in (bed.cores[a].near or ())) == (rtt_us <= 10_000), f"seed {seed}"


troubles = st.lists(
    st.tuples(
        st.sampled_from(["kill", "cut", "stop"]), st.integers(0, 1_500_000), st.integers(0, 5), st.integers(0, 5)
    ),
    max_size=4,
)
TRIANGLE = {(a, b): 1000 * (1 + (a == b + 1)) for a in range(3) for b in range(3) if a != b}


@settings(beds, max_examples=150)
@given(
    around=surroundings(),
    threshold_us=thresholds,
    rule=rules,
    jitter_us=jitters,
    rounds=st.integers(1, 3),
    troubles=troubles,
    absent=st.frozensets(st.integers(0, 5), max_size=1),
    seed=seeds,
)
@example((3, TRIANGLE), 5000, "metropolis", 0, 2, [("kill", 70_000, 2, 0)], frozenset[int](), 0)
@example((3, TRIANGLE), 5000, "uniform", 0, 2, [("cut", 50_000, 1, 2), ("stop", 60_000, 0, 0)], frozenset[int](), 0)
@example((3, TRIANGLE), 5000, "lazy", 0, 2, [], frozenset({1}), 0)
def test_whoever_lives_finishes_and_agrees_with_the_others(
    around: tuple[int, dict[Pair, int]],
    threshold_us: int,
    rule: Rule,
    jitter_us: int,
    rounds: int,
    troubles: list[tuple[str, int, int, int]],
    absent: frozenset[int],
    seed: int,
) -> None:
    """Deaths, false deaths, stops and absences at any time, learnt of at any time after. Rows sum to 1: see the bed."""
    peers, delays_us = around
    absent = frozenset(peer for peer in absent if peer < peers)
    bed = Bed(peers, delays_us, threshold_us, rule, rounds, Random(seed), jitter_us, absent)
    for kind, at_us, a, b in troubles:
        if kind == "cut" and (a, b) in delays_us:
            bed.at(at_us, partial(bed.cut, a, b))
        elif kind != "cut" and a < peers:
            bed.at(at_us, partial(bed.kill if kind == "kill" else bed.stop, a))
    bed.run()
    there = set(range(peers)) - bed.dead
    assert bed.finished.keys() - bed.dead == there
    assert all(bed.finished[i] == "finished" or i in bed.stopped for i in there)
    gone = bed.dead | bed.stopped
    for i in there - bed.stopped:
        core, here = bed.cores[i], bed.rows[i]
        assert all(j in gone or (i, j) in bed.severed for j in core.lost)
        assert abs(fsum(here.weights.values()) - 1.0) < 1e-15
        for j in bed.candidates(i):
            if j in gone or (i, j) in bed.severed:
                continue
            is_near = min(bed.trips_us[frozenset((i, j))]) <= threshold_us
            assert (j in here.weights, i in bed.rows[j].weights) == (is_near, is_near)
            if is_near:
                assert here.weights[j] == bed.rows[j].listeners[i]
                assert here.listeners[j] == bed.rows[j].weights[i]
                assert rule == "uniform" or here.weights[j] == here.listeners[j]
