"""Peers that walk about: who is within earshot changes with the round.

Random waypoint (Johnson and Maltz 1996, "Dynamic source routing in ad hoc wireless networks", without pauses): each
peer walks straight to a uniformly random point of the unit square, and from there to the next.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import cKDTree

from topology.distance import ROUNDING
from topology.net import TopologyError, checked_positions
from topology.seeds import stream
from topology.weights import check_rule, weighted

SPEED = 0.02  # of the square's side per round
_KEPT = 8  # rounds
_TABLES = 64  # of waypoints

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Moment:
    """All that the next round depends on. Peer i walks towards its waypoint number legs[i]."""

    places: _Floats  # (n, 2)
    targets: _Floats  # (n, 2)
    legs: _Ints  # (n,)
    pairs: _Ints  # (m,) who hears each other: i * n + j for i < j, ascending


class Mobile:
    """A schedule in which peers hear each other while they are near.

    A pair connects in the round in which its distance is at most threshold - margin, and drops in the one in which it
    is above `threshold` (hysteresis: who walks along the border does not come and go). Round 0 connects within
    threshold - margin, too. The rule of the weights is applied to the graph of the round.

    A peer walks at most `speed` per round, and ends the round where it arrives. Waypoint j of peer i is row i of a
    table drawn from (seed, j), and waypoint 0 is where it starts unless `positions` say. Lengths are in sides of the
    square.

    Going forward costs one step a round; a round older than the last few is walked to from the start again.
    """

    def __init__(
        self,
        peers: int,
        *,
        threshold: float,
        speed: float = SPEED,
        margin: float | None = None,
        rule: str = "auto",
        seed: int = 0,
        positions: ArrayLike | None = None,
    ) -> None:
        """`margin` None is a tenth of the threshold; `positions` are (n, 2).

        Raises TopologyError for "threshold", "speed", "margin", "weights" and "peers" (a position).
        """
        check_rule(rule)
        _check_lengths(threshold, speed, margin)
        self._peers = peers
        self._speed = speed
        self._far = threshold * (1.0 + ROUNDING)
        self._near = (threshold - (threshold / 10.0 if margin is None else margin)) * (1.0 + ROUNDING)
        self._rule = "metropolis" if rule == "auto" else rule
        self._start = None if positions is None else _in_the_square(positions, peers)
        self._recent: dict[int, _Moment] = {}  # the last rounds that were walked through, ascending
        self._waypoints = lru_cache(_TABLES)(lambda leg: stream(seed, "waypoint", leg).random((peers, 2)))
        self._weighted = lru_cache(_KEPT)(self._weights)

    @property
    def peers(self) -> int:
        return self._peers

    @property
    def period(self) -> int | None:
        return 1 if self._peers == 1 else None

    @property
    def directed(self) -> bool:
        return False

    def matrix(self, round: int) -> sparse.csr_array:
        """Return W of the round, (n, n)."""
        return self._weighted(round)

    def positions(self, round: int) -> _Floats:
        """Return where the peers are in the round, (n, 2)."""
        return self._moment(round).places.copy()

    def _weights(self, round: int) -> sparse.csr_array:
        one, other = np.divmod(self._moment(round).pairs, self._peers)
        receivers, senders = np.concatenate([one, other]), np.concatenate([other, one])
        return weighted(self._peers, receivers, senders, self._rule)

    def _moment(self, round: int) -> _Moment:
        if round in self._recent:
            return self._recent[round]
        latest = max(self._recent, default=round)
        if not self._recent or latest > round:
            self._recent = {0: self._first()}
            latest = 0
        for later in range(latest + 1, round + 1):
            self._recent[later] = self._next(self._recent[later - 1])
            self._recent.pop(later - _KEPT, None)
        return self._recent[round]

    def _first(self) -> _Moment:
        places = self._waypoints(0) if self._start is None else self._start
        legs = np.ones(self._peers, dtype=np.int64)
        return _Moment(places, self._waypoints(1), legs, self._in_earshot(places, np.empty(0, dtype=np.int64)))

    def _next(self, now: _Moment) -> _Moment:
        way = now.targets - now.places
        length = _lengths(way)
        arrives = length <= self._speed
        share = self._speed / np.where(arrives, 1.0, length)
        places = np.where(arrives[:, None], now.targets, now.places + share[:, None] * way)
        legs = now.legs + arrives
        targets = now.targets.copy()
        for leg in np.unique(legs[arrives]).tolist():
            these = arrives & (legs == leg)
            targets[these] = self._waypoints(leg)[these]
        return _Moment(places, targets, legs, self._in_earshot(places, now.pairs))

    def _in_earshot(self, places: _Floats, before: _Ints) -> _Ints:
        candidates = cKDTree(places).query_pairs(self._far * (1.0 + ROUNDING), output_type="ndarray")
        one, other = candidates.astype(np.int64).T  # one < other
        pairs = one * self._peers + other
        apart = _lengths(places[one] - places[other])
        return np.sort(
            pairs[(apart <= self._near) | ((apart <= self._far) & np.isin(pairs, before, assume_unique=True))]
        )


def _lengths(vectors: _Floats) -> _Floats:
    """Return the (m,) lengths of (m, 2) vectors, the same on every machine (which hypot does not promise)."""
    return np.sqrt(vectors[:, 0] * vectors[:, 0] + vectors[:, 1] * vectors[:, 1])


def _check_lengths(threshold: float, speed: float, margin: float | None) -> None:
    if not 0.0 < threshold < math.inf:
        text = f"threshold = {threshold}: mobile peers hear each other within a distance above 0"
        raise TopologyError("threshold", f"{text}, in sides of the square; 1.5 is everyone")
    if not 0.0 <= speed < math.inf:
        text = f"speed = {speed}: what a peer walks in a round is 0 or more"
        raise TopologyError("speed", f"{text}, in sides of the square, e.g. speed = {SPEED}")
    if margin is not None and not 0.0 <= margin < threshold:
        text = f"margin = {margin}: a pair connects within threshold - margin"
        raise TopologyError("margin", f"{text}, so margin is at least 0 and less than threshold = {threshold:g}")


def _in_the_square(positions: ArrayLike, peers: int) -> _Floats:
    places = checked_positions(positions, peers)
    outside = ((places < 0.0) | (places > 1.0)).any(axis=1)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        text = f"the position of peer {row} is {places[row].tolist()}: mobile peers start in the unit square"
        raise TopologyError("peers", f"{text}, so both numbers are between 0 and 1")
    return places
