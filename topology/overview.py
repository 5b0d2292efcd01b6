"""What the rounds of a schedule are like one by one: who is alone, how many hear each other, whether all are joined."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from topology.schedule import Schedule

KEPT_ENTRIES = 1 << 23


class Spread(NamedTuple):
    """The smallest, the largest and the mean of some counts."""

    min: int
    max: int
    mean: float


@dataclass(frozen=True)
class Overview:
    """The first `rounds` rounds of a schedule, or its period.

    `connected`: in how many of them everybody is joined with everybody (strongly, where it matters who hears whom);
    `edges` of a round, those of an undirected schedule counted once; `heard`: how many others a peer hears in a round;
    `messages`: how many are on their way in a round, on average.
    """

    rounds: int
    connected: int
    edges: Spread
    heard: Spread
    messages: float


def overview(schedule: Schedule, rounds: int) -> Overview:
    """Look at the period of a schedule, or at its first `rounds` rounds where it has none."""
    count = rounds if schedule.period is None else schedule.period
    heard = np.empty((count, schedule.peers), dtype=np.int64)
    connected = 0
    for round in range(count):
        W = schedule.matrix(round)
        apart = W.data != 0.0
        heard[round] = np.bincount(W.tocoo().row[apart], minlength=schedule.peers) - (W.diagonal() != 0.0)
        connected += csgraph.connected_components(W, schedule.directed, "strong", return_labels=False) == 1
    messages = heard.sum(axis=1)
    edges = messages if schedule.directed else messages // 2
    return Overview(count, connected, _spread(edges), _spread(heard), float(messages.mean()))


def _spread(counts: np.ndarray) -> Spread:
    return Spread(int(counts.min()), int(counts.max()), float(counts.mean()))


class Remembered:
    """A schedule whose rounds are kept, as many of those asked for first as fit: for who looks at them repeatedly."""

    def __init__(self, schedule: Schedule, entries: int = KEPT_ENTRIES) -> None:
        """Keep up to `entries` entries of matrices, about 12 bytes each."""
        self._schedule = schedule
        self._room = entries
        self._kept: dict[int, sparse.csr_array] = {}

    @property
    def peers(self) -> int:
        return self._schedule.peers

    @property
    def period(self) -> int | None:
        return self._schedule.period

    @property
    def directed(self) -> bool:
        return self._schedule.directed

    def matrix(self, round: int) -> sparse.csr_array:
        if round in self._kept:
            return self._kept[round]
        matrix = self._schedule.matrix(round)
        if matrix.nnz <= self._room:
            self._room -= matrix.nnz
            self._kept[round] = matrix
        return matrix
