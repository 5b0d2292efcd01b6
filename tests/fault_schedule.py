"""What a run of the fault bed is made of: plain data, a function of the seed, and every way to make it smaller."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from math import inf
from random import Random
from typing import Literal

from peer.assembly.faults import Fault
from peer.assembly.links import RESEND_S
from peer.protocol.membership import Patience

PATIENCE = Patience(suspect_s=0.6, dead_s=1.0, join_s=3.0)
HEARTBEAT_S = 0.1
PAYLOAD_BYTES = 1000

Arc = tuple[int, int]


@dataclass(frozen=True)
class Links:
    """The [network] table."""

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    bandwidth_mbps: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Peers, what they do, and what goes wrong.

    What becomes of a message is drawn from `seed`. `membership`: whether the peers watch who is there; without faults
    they need not.
    (u, v) in `arcs`: v hears u. In round r only every `turns`-th of them counts, from r on. Local steps of peer i take
    `steps_s[i]`, or, where `varies`, between once and twice that. `poisoned` learn what is not a number, (peer, round).
    """

    seed: int
    core: Literal["gossip", "asynchronous", "pairwise"]
    steps_s: tuple[float, ...]
    arcs: tuple[Arc, ...]
    rounds: int
    conserves: Literal["rows", "columns", "mean"] = "rows"
    exchanges: int = 1
    turns: int = 1
    round_deadline_s: float = 0.0
    max_staleness: int | None = None
    varies: bool = False
    membership: bool = True
    links: Links = field(default_factory=Links)
    poisoned: tuple[tuple[int, int], ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def peers(self) -> int:
        return len(self.steps_s)

    def step_s(self, me: int, round: int) -> float:
        share = (me * 7 + round * 5) % 11 / 10 if self.varies else 0.0
        return self.steps_s[me] * (1 + share)

    def message_s(self) -> float:
        """Return how long a message is on its way when it has to be sent again some times."""
        net = self.links
        queue_s = PAYLOAD_BYTES * 8 / (net.bandwidth_mbps * 1e6) * self.peers if net.bandwidth_mbps else 0.0
        again_s = (2 * net.latency_ms / 1000 + RESEND_S) * (bool(net.reorder or net.duplicate) + 4 * bool(net.loss))
        return (net.latency_ms + net.jitter_ms) / 1000 + queue_s + again_s

    def calm_s(self) -> float:
        """Return after how many seconds without a new trouble a run must have ended, generously."""
        waits_s = self.exchanges * self.message_s() + self.round_deadline_s
        return 2 * (self.rounds + 2) * (2 * max(self.steps_s) + 2 * waits_s) + 2 * PATIENCE.join_s + 8 * PATIENCE.dead_s

    def __str__(self) -> str:
        kind = self.core if self.core != "gossip" else f"gossip, {self.conserves}, exchanges={self.exchanges}"
        lines = [
            f"{kind}, {self.peers} peers, {self.rounds} rounds",
            f"  arcs {' '.join(f'{a}>{b}' for a, b in self.arcs)}, turns={self.turns}",
            f"  steps_s {self.steps_s}, varies={self.varies}, membership={self.membership}",
            f"  round_deadline_s={self.round_deadline_s}, max_staleness={self.max_staleness}",
            f"  {self.links}, drawn from seed {self.seed}",
            *(f"  peer {peer} learns nonsense in round {round}" for peer, round in self.poisoned),
            *(f"  {_in_words(fault)}" for fault in self.faults),
        ]
        return "\n".join(lines)


def _in_words(fault: Fault) -> str:
    when = f"at {fault.at_s} s" if fault.round is None else f"after round {fault.round}"
    whom = fault.peers or fault.groups
    return f"{when}: {fault.what} {whom}" + (f" for {fault.for_s} s" if fault.for_s is not None else "")


# ---- From a seed


def schedule_of(seed: int) -> Schedule:
    """Return the schedule of a seed; nine kinds of protocol take turns."""
    draw = Random(seed)
    peers, rounds = draw.randint(2, 8), draw.choice([3, 8, 16, 32])
    paces = [1.0, 1.0, 1.0, 0.25, 4.0] * 4
    if rounds < 10:
        paces.append(60.0)  # longer than the dead are waited for
    slow = [draw.choice(paces) for _ in range(peers)]
    faults = _faults(peers, rounds, draw)
    plain = Schedule(
        seed=seed,
        core="gossip",
        steps_s=tuple(round(0.1 * factor, 3) for factor in slow),
        arcs=_both_ways(_edges(peers, draw)),
        rounds=rounds,
        varies=draw.random() < 0.5,
        links=_links(draw),
        poisoned=((draw.randrange(peers), draw.randrange(rounds)),) if draw.random() < 0.15 else (),
        faults=faults,
        membership=bool(faults) or draw.random() < 0.5,
    )
    return _KINDS[seed % len(_KINDS)](plain, draw)


def _directed(plain: Schedule, draw: Random) -> Schedule:
    n = plain.peers
    ring = {(i, (i + 1) % n) for i in range(n)}
    more = {(a, b) for a in range(n) for b in range(n) if a != b and draw.random() < 0.15}
    arcs = plain.arcs if draw.random() < 0.3 else tuple(sorted(ring | more))
    return replace(plain, conserves="columns", arcs=arcs, turns=draw.choice([1, 1, 2]))


def _complete(plain: Schedule, draw: Random) -> Schedule:
    return replace(plain, conserves="mean", arcs=_both_ways(combinations(range(plain.peers), 2)))


def _by_deadline(plain: Schedule, draw: Random) -> Schedule:
    return replace(plain, round_deadline_s=draw.choice([0.05, 0.3]), exchanges=draw.choice([1, 1, 2]))


_KINDS: tuple[Callable[[Schedule, Random], Schedule], ...] = (
    lambda plain, draw: replace(plain, turns=draw.choice([1, 1, 2])),
    lambda plain, draw: replace(plain, exchanges=2, turns=draw.choice([1, 1, 2])),
    _directed,
    lambda plain, draw: replace(_by_deadline(_directed(plain, draw), draw), exchanges=1),
    _complete,
    _by_deadline,
    lambda plain, draw: replace(plain, core="asynchronous"),
    lambda plain, draw: replace(plain, core="asynchronous", max_staleness=draw.choice([0, 1, 4])),
    lambda plain, draw: replace(plain, core="pairwise"),
)


def _edges(n: int, draw: Random) -> list[Arc]:
    match draw.choice(["ring", "path", "star", "complete", "tree"]):
        case "ring":
            return sorted({(min(i, (i + 1) % n), max(i, (i + 1) % n)) for i in range(n)})
        case "path":
            return list(pairwise(range(n)))
        case "star":
            return [(0, i) for i in range(1, n)]
        case "complete":
            return list(combinations(range(n), 2))
    tree = {(draw.randrange(i), i) for i in range(1, n)}
    return sorted(tree | {pair for pair in combinations(range(n), 2) if draw.random() < 0.2})


def _both_ways(edges: Iterable[Arc]) -> tuple[Arc, ...]:
    return tuple(arc for a, b in edges for arc in ((a, b), (b, a)))


def _links(draw: Random) -> Links:
    def some(*values: float) -> float:
        return draw.choice((0.0, *values))

    if draw.random() < 0.2:
        return Links()
    return Links(some(1.0, 20.0), some(5.0, 150.0), some(0.5, 5.0), some(0.05, 0.3), some(0.1, 0.3), some(0.1, 0.3))


def _faults(peers: int, rounds: int, draw: Random) -> tuple[Fault, ...]:
    """Return up to eight faults; nothing but cuts happens to those that join later."""
    newcomers = [peer for peer in range(1, peers) if draw.random() < 0.08]
    found = [_when(Fault("join", (peer,)), rounds, draw) for peer in newcomers]
    there = [peer for peer in range(peers) if peer not in newcomers]
    for _ in range(draw.choice([0, 1, 1, 2, 3, 5, 8])):
        found.append(_when(_fault(peers, there, draw), rounds, draw))
    return tuple(found[:8])


def _fault(peers: int, there: list[int], draw: Random) -> Fault:
    peer, long_s = draw.choice(there), draw.choice([0.1, 0.5, 1.2, 4.0])
    match draw.choice(["kill", "kill for good", "kill", "stop", "stop", "cut", "cut", "partition", "leave", "restart"]):
        case "kill":
            return Fault("kill", (peer,), for_s=long_s)
        case "kill for good":
            return Fault("kill", (peer,))
        case "stop":
            return Fault("stop", (peer,), for_s=long_s)
        case "cut":
            a, b = draw.sample(range(peers), 2)
            return Fault("cut", (a, b), for_s=long_s)
        case "partition":
            side = {peer for peer in range(peers) if draw.random() < 0.5} or {0}
            groups = tuple(sorted(side)), tuple(peer for peer in range(peers) if peer not in side)
            return Fault("partition", groups=tuple(group for group in groups if group), for_s=long_s)
        case "leave":
            return Fault("leave", (peer,))
    return Fault("restart", (peer,))


def _when(fault: Fault, rounds: int, draw: Random) -> Fault:
    if draw.random() < 0.4:
        return replace(fault, round=draw.randint(0, rounds))
    return replace(fault, at_s=round(draw.random() * rounds * 0.3, 2))


# ---- Smaller ones


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yield what is a little less than this schedule, the greatest savings first."""
    for peer in range(schedule.peers if schedule.peers > 2 else 0):
        fewer = _without_peer(schedule, peer)
        yield fewer
        if schedule.links != Links():  # who moves up has other links, of which other things are drawn
            yield from (replace(fewer, seed=seed) for seed in range(4))
    for i in range(len(schedule.faults)):
        yield replace(schedule, faults=schedule.faults[:i] + schedule.faults[i + 1 :])
    for fewer in (schedule.rounds // 2, schedule.rounds - 1):
        if 1 <= fewer < schedule.rounds:
            yield replace(schedule, rounds=fewer)
    plainer = replace(schedule, poisoned=(), turns=1, exchanges=1, varies=False)
    even = replace(schedule, steps_s=(0.1,) * schedule.peers)
    for less in (replace(schedule, links=Links()), plainer, even):
        if less != schedule:
            yield less
    for name, value in (("poisoned", ()), ("turns", 1), ("exchanges", 1), ("varies", False), ("max_staleness", None)):
        if getattr(schedule, name) != value:
            yield replace(schedule, **{name: value})  # type: ignore[arg-type]
    for name in Links.__dataclass_fields__:
        if getattr(schedule.links, name):
            yield replace(schedule, links=replace(schedule.links, **{name: 0.0}))
    for edge in sorted({(min(arc), max(arc)) for arc in schedule.arcs}):
        rest = tuple(arc for arc in schedule.arcs if (min(arc), max(arc)) != edge)
        if rest:
            yield replace(schedule, arcs=rest)
    for i, fault in enumerate(schedule.faults):
        for less_of_it in _sooner(fault):
            yield replace(schedule, faults=(*schedule.faults[:i], less_of_it, *schedule.faults[i + 1 :]))


def _sooner(fault: Fault) -> Iterator[Fault]:
    if fault.round:
        yield replace(fault, round=fault.round // 2)
        yield replace(fault, round=fault.round - 1)
    if fault.at_s:
        yield replace(fault, at_s=_half(fault.at_s))
    if fault.for_s:
        yield replace(fault, for_s=_half(fault.for_s))


def _half(seconds: float) -> float:
    return round(seconds / 2, 2) if seconds > 0.05 else 0.0


def _without_peer(schedule: Schedule, gone: int) -> Schedule:
    """Leave a peer out, and whatever happens to it; those after it move up."""

    def moved(peers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(peer - (peer > gone) for peer in peers if peer != gone)

    faults = []
    for fault in schedule.faults:
        groups = tuple(group for group in map(moved, fault.groups) if group)
        if gone not in fault.peers and (groups or not fault.groups):
            faults.append(replace(fault, peers=moved(fault.peers), groups=groups))
    return replace(
        schedule,
        steps_s=tuple(s for peer, s in enumerate(schedule.steps_s) if peer != gone),
        arcs=tuple((a - (a > gone), b - (b > gone)) for a, b in schedule.arcs if gone not in (a, b)),
        poisoned=tuple((peer - (peer > gone), round) for peer, round in schedule.poisoned if peer != gone),
        faults=tuple(faults),
    )


def size(schedule: Schedule) -> tuple[float, ...]:
    """Return how much a schedule is: smaller ones come first."""
    net, long_s = schedule.links, sum(f.for_s or 0.0 for f in schedule.faults if f.for_s not in (None, inf))
    when = sum(f.at_s or f.round or 0 for f in schedule.faults)
    figures = sum(bool(getattr(net, name)) for name in Links.__dataclass_fields__)
    return schedule.peers, len(schedule.faults), schedule.rounds, figures, len(schedule.arcs), when, long_s
