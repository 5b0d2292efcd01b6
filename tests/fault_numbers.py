"""The numbers of the fault bed: what each peer holds, what is on its way between two, and the weights of both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite

from peer.protocol.messages import Neighbourhood, PeerId
from tests.fault_checks import Broken, Said
from tests.fault_schedule import Schedule

Numbers = tuple[float, ...]
Pair = tuple[PeerId, PeerId]


@dataclass
class State:
    """One peer's numbers: its parameter, and under push-sum its weight; and what it has given and taken in all."""

    now: Numbers
    settled: Numbers
    given: dict[PeerId, Numbers] = field(default_factory=dict)
    taken: dict[PeerId, Said] = field(default_factory=dict)
    is_poisoned: bool = False


class Mass:
    """Push-sum: what there is in all, and what is on its way between two peers."""

    def __init__(self, peers: int) -> None:
        self.is_void = False  # since somebody was lost, or has learned nonsense
        self._all = [fsum(me + 1 for me in range(peers)), float(peers)]
        self._way: dict[Pair, Numbers] = {}

    def add(self, learned: float) -> None:
        self._all[0] += learned

    def gave(self, sender: PeerId, receiver: PeerId, share: Numbers) -> None:
        before = self._way.get((sender, receiver), (0.0, 0.0))
        self._way[sender, receiver] = tuple(b + s for b, s in zip(before, share, strict=True))

    def taken(self, sender: PeerId, receiver: PeerId, new: Numbers) -> None:
        self.gave(sender, receiver, tuple(-x for x in new))

    def check(self, holds: dict[PeerId, Numbers], now_s: float) -> None:
        if self.is_void:
            return
        for i, name in enumerate(("x", "w")):
            there = fsum([now[i] for now in holds.values()] + [way[i] for way in self._way.values()])
            if abs(there - self._all[i]) > 1e-9 * (1 + abs(self._all[i])):
                raise Broken("mass is kept", f"at {now_s:.3f} s the {name} are {there} in all and were {self._all[i]}")

    def check_arrived(self) -> None:
        lost = {pair: way for pair, way in self._way.items() if any(abs(x) > 1e-9 for x in way)}
        if lost and not self.is_void:
            raise Broken("mass is kept", f"the run is over, and on its way is still {lost}")


def is_finite(numbers: Numbers) -> bool:
    return all(map(isfinite, numbers))


def weighted_sum(terms: Sequence[tuple[float, Numbers]]) -> Numbers:
    total = [0.0] * len(terms[0][1])
    for weight, values in terms:
        total = [t + weight * value for t, value in zip(total, values, strict=True)]
    return tuple(total)


def neighbourhoods(schedule: Schedule, turn: int) -> list[Neighbourhood]:
    """Return W of one of the turns: Metropolis weights, for columns 1 / (listeners + 1), for the mean 1 / peers."""
    peers = range(schedule.peers)
    edges = sorted({(min(arc), max(arc)) for arc in schedule.arcs})
    taken = set(edges[turn :: schedule.turns])
    arcs = [arc for arc in schedule.arcs if (min(arc), max(arc)) in taken]
    hears = {me: sorted(a for a, b in arcs if b == me) for me in peers}
    heard_by = {me: sorted(b for a, b in arcs if a == me) for me in peers}

    def weight(to: PeerId, of: PeerId) -> float:
        if schedule.conserves == "columns":
            return 1 / (len(heard_by[of]) + 1)
        if schedule.conserves == "mean":
            return 1 / schedule.peers
        return 1 / (1 + max(len(hears[to]), len(hears[of])))

    rows = {me: {peer: weight(me, peer) for peer in hears[me]} for me in peers}
    columns = {me: {peer: weight(peer, me) for peer in heard_by[me]} for me in peers}
    given = columns if schedule.conserves == "columns" else rows
    own = {me: 1.0 - fsum(given[me].values()) for me in peers}
    return [Neighbourhood(dict(sorted({**rows[me], me: own[me]}.items())), columns[me]) for me in peers]
