"""How long a round will take in the events engine, from links and speeds alone: nothing is trained or sent.

Where peers wait for each other, the ends of rounds follow from those before. Peer i begins round r at b_i, says
something when its local steps are done, and goes on when it has heard everybody that it is to hear:

    s_i = b_i + step time of i in r
    h_i = max(s_i, max over j heard by i of s_j + transmission + latency)      for each exchange; then s_i = h_i
    b_i = h_i                                                                  for the next round

A link carries one message after another, and they arrive in that order; where a machine has a line of its own for all
that it sends and is sent, a message waits for these, too: see peer/assembly/queues.py. Jitter, losses and lognormal
steps are drawn, for the wait is for the latest of several, and that one is later than the mean of each. Where nobody
waits, each peer goes at its own pace. With a round deadline it is left out that a peer which lags by rounds is not told
any more what it has missed. Coordinators and the ring all-reduce are in files of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peer.assembly.assembly import Assembly
from peer.assembly.links import RESEND_S, transmission_s
from peer.assembly.pace_coordinator import seconds_beside_coordinators
from peer.assembly.pace_ring import seconds_around_ring
from peer.assembly.queues import alone_s, line_s
from peer.seeds import stream

ROUNDS, PEER_ROUNDS = 64, 100_000
"""How many rounds are looked at, and rounds times peers."""

EVERYONE_PEERS = 500
"""Between so many peers at most every link is looked at, where everybody hears everybody."""

Times = NDArray[np.float64]


def seconds_per_round(assembly: Assembly, payload_bytes: Sequence[int]) -> float | None:
    """Return how many simulated seconds a round takes, once the first rounds are over.

    `payload_bytes` are those of a message of each exchange; beside coordinators, of what a worker pushes in all and of
    what it is given in all; in a ring, of all parameters. Where there are coordinators, a round is a version of theirs.
    None where it is found out in the run who hears whom, where it would take too long to say, and where neither steps
    nor links take any time.
    """
    experiment = assembly.experiment
    if experiment.coordinates:
        push_bytes, given_bytes = payload_bytes
        return seconds_beside_coordinators(assembly, push_bytes, given_bytes) or None
    if experiment.is_ring:
        return seconds_around_ring(assembly, payload_bytes[0]) or None
    if experiment.topology.metric in ("rtt", "model") and assembly.uses_topology:
        return None
    if experiment.is_asynchronous:
        return _without_waiting(assembly, sum(payload_bytes))
    if _too_many(assembly) and not _all_alike(assembly):
        return None
    return _ends_of_rounds(assembly, payload_bytes) or None


def _too_many(assembly: Assembly) -> bool:
    """Say whether there are more links than can be looked at one by one."""
    return assembly.everyone and len(assembly.names) > EVERYONE_PEERS


def _all_alike(assembly: Assembly) -> bool:
    network = assembly.experiment.network
    return not (assembly.links.own or network.jitter_ms or network.loss or network.node_mbps)


def _without_waiting(assembly: Assembly, payload_bytes: int) -> float | None:
    """A round is then n local rounds in all. Under adpsgd a local round holds the answer of one neighbour, too."""
    everyone = range(len(assembly.names))
    means_s = [assembly.speeds.mean_round_s(i) for i in everyone]
    if assembly.experiment.algorithm.name == "adpsgd":
        means_s = [means_s[i] + _answered_s(assembly, i, payload_bytes) for i in everyone]
    return len(means_s) / sum(1 / mean_s for mean_s in means_s) if all(means_s) else None


def _answered_s(assembly: Assembly, me: int, payload_bytes: int) -> float:
    """Return how long it takes on average until a neighbour, which is free, has answered; 0 without neighbours."""
    others, links, network = sorted(assembly.neighbours(me)), assembly.links, assembly.experiment.network
    jitter_s = network.jitter_ms / 1000
    there_and_back_s = 0.0
    for other in others:
        round_trip_s = links.round_trip_ms(me, other) / 1000
        there_and_back_s += round_trip_s + jitter_s
        for link in (links.of(me, other), links.of(other, me)):
            losses = link.loss / (1 - link.loss)
            there_and_back_s += alone_s(link, network.node_mbps, payload_bytes) + losses * (round_trip_s + RESEND_S)
    return there_and_back_s / len(others) if others else 0.0


def _ends_of_rounds(assembly: Assembly, payload_bytes: Sequence[int]) -> float:
    n, experiment = len(assembly.names), assembly.experiment
    rounds = min(experiment.rounds or ROUNDS, ROUNDS, max(2, PEER_ROUNDS // n))
    deadline_s = experiment.transport.round_deadline_s or np.inf
    draw, kept, machines = stream(experiment.seed, "pace"), dict[int, "_Ears"](), _Machines(n)
    begun_s, ends_s = np.zeros(n), [0.0]
    for round in range(rounds):
        ears = _ears(assembly, round, payload_bytes, kept, machines)
        said_s = begun_s + np.array([assembly.speeds.round_s(i, round) for i in range(n)])
        for exchange in range(len(payload_bytes)):
            heard_s = np.maximum(said_s, ears.latest(said_s, exchange, draw))
            said_s = np.minimum(heard_s, said_s + deadline_s)
        begun_s = said_s
        ends_s.append(float(begun_s.max()))
    half = rounds // 2
    return (ends_s[rounds] - ends_s[half]) / (rounds - half)


# ---- Who hears whom


class _Ears(Protocol):
    def latest(self, said_s: Times, exchange: int, draw: np.random.Generator) -> Times:
        """Return when each peer, (n,), has heard the last of what was said at these times, (n,); -inf for nothing."""
        ...


class _Lines:
    """Queues that messages of several links share, one for each machine: for what it sends, or for what it is sent."""

    def __init__(self, machines: int) -> None:
        self._free_s = np.full(machines, -np.inf)

    def through_s(self, whose: NDArray[np.int64], given_s: Times, busy_s: float) -> Times:
        """Return when each message, (E,), is through the line of machine `whose`, first come, first served.

        The k-th of a line is through (k + 1) `busy_s` after that line was free, or (k + 1 - m) after its m-th came.
        """
        order = np.lexsort((given_s, whose))
        line, given_s = whose[order], given_s[order]
        is_first = np.diff(line, prepend=-1) != 0
        first = np.flatnonzero(is_first)
        row = np.cumsum(is_first) - 1
        rank = np.arange(len(line)) - first[row]
        begins_s = given_s - rank * busy_s
        apart_s = row * (np.ptp(begins_s) + 1.0)  # so that one running maximum serves all lines
        begins_s = np.maximum(np.maximum.accumulate(begins_s + apart_s) - apart_s, self._free_s[line])
        through_s: Times = begins_s + (rank + 1) * busy_s
        np.maximum.at(self._free_s, line, through_s)
        found = np.empty_like(through_s)
        found[order] = through_s
        return found


class _Machines:
    """The lines of all peers' machines."""

    def __init__(self, peers: int) -> None:
        self.sending, self.hearing = _Lines(peers), _Lines(peers)


@dataclass
class _Edges:
    """One entry for each link that is used in a round, (E,); transmissions for each exchange, (k, E).

    `busy_s` is for how long a message of each exchange, (k,), keeps the line of a machine busy.
    """

    senders: NDArray[np.int64]
    receivers: NDArray[np.int64]
    transmission_s: Times
    latency_s: Times
    round_trip_s: Times
    loss: Times
    jitter_s: float
    resends: bool
    machines: _Machines
    busy_s: Sequence[float]
    free_s: Times = field(init=False)  # when a link has sent what it was given before
    last_s: Times = field(init=False)  # when that arrives

    def __post_init__(self) -> None:
        self.free_s = self.last_s = np.full(len(self.senders), -np.inf)

    def latest(self, said_s: Times, exchange: int, draw: np.random.Generator) -> Times:
        there_s = self._departed(said_s[self.senders], exchange) + self.latency_s
        if self.jitter_s:
            there_s += draw.uniform(0.0, self.jitter_s, len(there_s))
        if self.loss.any():
            times_lost = draw.geometric(1.0 - self.loss) - 1
            there_s += (
                times_lost * (self.round_trip_s + RESEND_S) if self.resends else np.where(times_lost, np.inf, 0.0)
            )
        arrived = np.isfinite(there_s)
        there_s = np.maximum(there_s, self.last_s)
        self.last_s = np.where(arrived, there_s, self.last_s)
        found = np.full(len(said_s), -np.inf)
        np.maximum.at(found, self.receivers, there_s)
        return found

    def _departed(self, given_s: Times, exchange: int) -> Times:
        """Return when each message, (E,), has left its queues."""
        self.free_s = np.maximum(self.free_s, given_s) + self.transmission_s[exchange]
        departs_s: Times = self.free_s
        busy_s = self.busy_s[exchange]
        if busy_s and len(given_s):
            out_s = self.machines.sending.through_s(self.senders, given_s, busy_s)
            in_s = self.machines.hearing.through_s(self.receivers, given_s, busy_s)
            departs_s = np.maximum(departs_s, np.maximum(out_s, in_s))
        return departs_s


@dataclass
class _Everyone:
    """All links between all peers, where they are alike and never busy: whoever spoke last is heard last."""

    transmission_s: Sequence[float]
    latency_s: float

    def latest(self, said_s: Times, exchange: int, draw: np.random.Generator) -> Times:
        second, last = np.partition(said_s, -2)[-2:]
        others = np.full(len(said_s), last)
        others[int(said_s.argmax())] = second
        return others + (self.transmission_s[exchange] + self.latency_s)


def _ears(
    assembly: Assembly, round: int, payload_bytes: Sequence[int], kept: dict[int, _Ears], machines: _Machines
) -> _Ears:
    """Return what is heard in a round; `kept` holds those of the rounds before, by their place in the period."""
    place = round % assembly.period if assembly.period else round
    if place not in kept:
        if _too_many(assembly):
            link = assembly.links.all
            kept[place] = _Everyone([transmission_s(link, size) for size in payload_bytes], link.latency_ms / 1000)
        else:
            kept[place] = _edges(assembly, round, payload_bytes, machines)
    return kept[place]


def _edges(assembly: Assembly, round: int, payload_bytes: Sequence[int], machines: _Machines) -> _Edges:
    receivers, senders = _heard(assembly, round)
    links, network = assembly.links, assembly.experiment.network
    if links.own:
        there = [links.of(j, i) for i, j in zip(receivers.tolist(), senders.tolist(), strict=True)]
        back = [links.of(i, j) for i, j in zip(receivers.tolist(), senders.tolist(), strict=True)]
    else:
        there = back = [links.all]
    size = len(senders)

    def each(figures: Sequence[float]) -> Times:
        return np.broadcast_to(np.array(figures, dtype=np.float64), (size,)).copy()

    return _Edges(
        senders,
        receivers,
        np.stack([each([transmission_s(link, n_bytes) for link in there]) for n_bytes in payload_bytes]),
        each([link.latency_ms / 1000 for link in there]),
        each([(a.latency_ms + b.latency_ms) / 1000 for a, b in zip(there, back, strict=True)]),
        each([link.loss for link in there]),
        network.jitter_ms / 1000,
        resends=not assembly.experiment.transport.round_deadline_s,  # for then it would come too late
        machines=machines,
        busy_s=[line_s(network.node_mbps, n_bytes) for n_bytes in payload_bytes],
    )


def _heard(assembly: Assembly, round: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return who hears and whom, (E,) each."""
    n = len(assembly.names)
    if assembly.everyone:
        receivers, senders = np.nonzero(~np.eye(n, dtype=bool))
        return receivers, senders
    matrix = assembly.mixing(round).tocoo()
    between = (matrix.data != 0.0) & (matrix.row != matrix.col)
    return matrix.row[between].astype(np.int64), matrix.col[between].astype(np.int64)
