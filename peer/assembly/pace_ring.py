"""How long a round of a ring all-reduce will take: every piece on its way from member to member.

A member begins round r at b, and its own part is there when its local steps are done. In step t of 2 (n - 1) it hands
on segment i - t, piece by piece: in step 0 what it has itself, up to step n - 2 what it has heard with its own part
added, after that whole sums. A piece goes on as soon as it is there, one after another over each link:

    departs = max(when it is there, the piece before has departed) + transmission
    there at the next = max(departs + latency, in the scatter phase: own part of the next)

The next round begins when the sum of every piece is there. Adding takes no time.
"""

import numpy as np
from numpy.typing import NDArray

from peer.assembly.assembly import DTYPES, Assembly
from peer.assembly.coordination import PIECE_BYTES
from peer.assembly.links import RESEND_S
from peer.assembly.queues import alone_s
from peer.protocol.ring import cut
from peer.seeds import stream

ROUNDS, PIECES_HANDED_ON = 64, 20_000
"""How many rounds are looked at, and how many pieces each member hands on in all of them; two rounds at least, and in
these no more than twice as many pieces."""

Times = NDArray[np.float64]


def seconds_around_ring(assembly: Assembly, payload_bytes: int) -> float | None:
    """Return how many simulated seconds a round takes, `payload_bytes` being those of all parameters; None where it
    would take too long to say."""
    n, e = len(assembly.names), assembly.experiment
    sizes = piece_sizes(payload_bytes, n, DTYPES[e.task.dtype].itemsize)
    in_a_round: int = max(1, 2 * (n - 1) * sizes.shape[1])
    if in_a_round > PIECES_HANDED_ON:
        return None
    rounds = min(e.rounds or ROUNDS, ROUNDS, max(2, PIECES_HANDED_ON // in_a_round))
    ring = _Links(assembly, sizes)
    begun_s: Times = np.zeros(n)
    ends_s = [0.0]
    for round in range(rounds):
        own_s = begun_s + np.array([assembly.speeds.round_s(i, round) for i in range(n)])
        begun_s = ring.reduced(own_s)
        ends_s.append(float(begun_s.max()))
    half = rounds // 2
    return (ends_s[rounds] - ends_s[half]) / (rounds - half)


def piece_sizes(payload_bytes: int, members: int, itemsize: int) -> NDArray[np.int64]:
    """Return the bytes of each piece of each segment, (members, pieces); 0 where a segment has no such piece."""
    segments = cut(payload_bytes // itemsize, members, PIECE_BYTES // itemsize)
    sizes = np.zeros((members, max(map(len, segments), default=0)), dtype=np.int64)
    for segment, pieces in enumerate(segments):
        sizes[segment, : len(pieces)] = [len(piece) * itemsize for piece in pieces]
    return sizes


class _Links:
    """The links from each member to the next, (n,), and what has gone over them."""

    def __init__(self, assembly: Assembly, sizes: NDArray[np.int64]) -> None:
        network, n = assembly.experiment.network, len(assembly.names)
        self.n = n
        links = [assembly.links.of(i, (i + 1) % n) for i in range(n)]
        known = np.unique(sizes)
        self._sizes = sizes
        self._index = np.searchsorted(known, sizes)
        self._transmission_s = np.array([[alone_s(link, network.node_mbps, int(b)) for b in known] for link in links])
        self._latency_s = np.array([link.latency_ms / 1000 for link in links])
        self._loss = np.array([link.loss for link in links])
        trips_ms = [assembly.links.round_trip_ms(i, (i + 1) % n) for i in range(n)]
        self._resend_s = np.array(trips_ms) / 1000 + RESEND_S
        self._jitter_s = network.jitter_ms / 1000
        self._draw = stream(assembly.experiment.seed, "pace")
        self._free_s = self._last_s = np.full(n, -np.inf)

    def reduced(self, own_s: Times) -> Times:
        """Return when each member has all sums, (n,), their own parts being there at `own_s`, (n,)."""
        members, pieces = np.arange(self.n), self._sizes.shape[1]
        there_s = np.broadcast_to(own_s[:, None], (self.n, pieces))  # when a member has what it hands on in this step
        all_s = own_s.copy()
        for step in range(2 * (self.n - 1)):
            segment = (members - step) % self.n
            there_s = np.stack([self._handed_on(there_s[:, k], segment, k) for k in range(pieces)], axis=1)
            if step < self.n - 1:
                there_s = np.maximum(there_s, own_s[:, None])
            if step >= self.n - 2:
                all_s = np.maximum(all_s, there_s.max(axis=1, initial=-np.inf))
        return all_s

    def _handed_on(self, there_s: Times, segment: NDArray[np.int64], piece: int) -> Times:
        """Return when the next of each has this piece, (n,) by who hears it; -inf for pieces that there are not."""
        exists = self._sizes[segment, piece] > 0
        transmission_s = self._transmission_s[np.arange(self.n), self._index[segment, piece]]
        departs_s = np.maximum(self._free_s, there_s) + transmission_s
        arrives_s = departs_s + self._latency_s
        if self._jitter_s:
            arrives_s += self._draw.uniform(0.0, self._jitter_s, self.n)
        if self._loss.any():
            arrives_s += (self._draw.geometric(1.0 - self._loss) - 1) * self._resend_s
        arrives_s = np.maximum(arrives_s, self._last_s)
        self._free_s = np.where(exists, departs_s, self._free_s)
        self._last_s = np.where(exists, arrives_s, self._last_s)
        heard_s: Times = np.roll(np.where(exists, arrives_s, -np.inf), 1)
        return heard_s
