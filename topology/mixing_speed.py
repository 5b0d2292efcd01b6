"""How fast a schedule brings peers together, found by mixing.

What counts is what the peers would read off: x after rounds in which every W has rows that sum to 1, and x / w where
columns do, w being the push-sum weights. Both are x / w: w stays 1 where rows sum to 1.
"""

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topology.schedule import Schedule
from topology.seeds import stream
from topology.spectrum import slem
from topology.weights import stochasticity

_HELD_UP_TO = 512  # peers up to which the whole product of the rounds is held
_STARTS = 8
_CONSENSUS = 1e-6  # of the start's disagreement
_STANDSTILL_ROUNDS = 2000  # rounds that bring peers no closer
_NOTHING = 1e-12  # a round that leaves no more of the disagreement leaves nothing but rounding

_Floats = NDArray[np.float64]


def measured_rounds_to_consensus(schedule: Schedule, tolerance: float = 1e-6, limit: int = 10_000) -> int | None:
    """Return the first t for which the rounds 0 .. t-1 leave at most `tolerance` of any start's disagreement.

    Up to 512 peers over all starts: doubly stochastic rounds by the 2-norm of W_{t-1} ... W_0 - J / n, others by how
    far apart the peers are when one of them started at 1 and the others at 0. Above, over 8 random starts, by the
    distance from the mean. None where `limit` rounds are not enough.
    """
    mixed: _Mixed = _Product(schedule.peers) if schedule.peers <= _HELD_UP_TO else _RandomStarts(schedule.peers)
    before = math.inf
    for round in range(limit):
        mixed.mix(schedule.matrix(round))
        if mixed.agrees(tolerance):
            return round + 1
        if (round + 1) % _STANDSTILL_ROUNDS == 0:
            left = mixed.disagreement()
            if left > before * (1.0 - _NOTHING):  # parts that never meet
                return None
            before = left
    return None


def contraction(schedule: Schedule, rounds: int) -> float:
    """Return the factor per round by which disagreement shrinks in the long run; 0.0 where nothing of it is left.

    With a period and up to 512 peers it is the slem of the period's product, to the power of 1 / period. Otherwise it
    is measured from a random start: without a period, the geometric mean of the rounds up to consensus to within a
    millionth; with one, or where `rounds` rounds do not get so far, that of the second half of them. 1.0 where nothing
    shrinks any more.
    """
    period = schedule.period
    if period == 1:
        return slem(schedule.matrix(0))
    if period is None or schedule.peers > _HELD_UP_TO:
        return _measured_contraction(schedule, rounds)
    product = np.eye(schedule.peers)
    for round in range(period):
        product = schedule.matrix(round) @ product
    return math.pow(slem(sparse.csr_array(product)), 1.0 / period)


def _measured_contraction(schedule: Schedule, rounds: int) -> float:
    left = [0.0]  # logarithms of the disagreement, as a share of the start's
    for size in _shares_left(schedule, rounds):
        if size < _NOTHING and (schedule.period is not None or len(left) == 1):
            return 0.0
        left.append(left[-1] + math.log(max(size, _NOTHING)))
        if schedule.period is None and left[-1] <= math.log(_CONSENSUS):  # chance may make it exact sooner or later
            return math.exp(math.log(_CONSENSUS) / (len(left) - 1))
    half = len(left) // 2
    factor = math.exp((left[-1] - left[half]) / max(1, len(left) - 1 - half))
    return 1.0 if abs(factor - 1.0) < 1e-9 else factor


def _shares_left(schedule: Schedule, rounds: int) -> Iterator[float]:
    """Yield what each round leaves of the disagreement before it, which is taken back to size 1 so as not to drown in
    rounding."""
    x = _random_starts(schedule.peers, 1)
    w = np.ones((schedule.peers, 1))
    x = _of_size_1(x - w * (x / w).mean(), w)[0]
    for round in range(rounds):
        W = schedule.matrix(round)
        x, w = W @ x, W @ w
        x, size = _of_size_1(x - w * (x / w).mean(), w)
        yield size
        if size < _NOTHING:
            return


def _of_size_1(x: _Floats, w: _Floats) -> tuple[_Floats, float]:
    size = float(np.linalg.norm(x / w))
    return (x / size if size else x), size


# --- what mixing has made of the starts


class _Mixed(Protocol):
    def mix(self, W: sparse.csr_array) -> None: ...
    def agrees(self, tolerance: float) -> bool: ...
    def disagreement(self) -> float: ...


class _Product:
    """W_{t-1} ... W_0, (n, n): its columns are what has become of the starts 1 at one peer, 0 at the others."""

    def __init__(self, count: int) -> None:
        self._product = np.eye(count)
        self._doubly = True
        self._probe = _random_starts(count, 1)[:, 0]

    def mix(self, W: sparse.csr_array) -> None:
        self._product = W @ self._product
        self._doubly = self._doubly and stochasticity(W) == "doubly"

    def agrees(self, tolerance: float) -> bool:
        return self._norm_is_within(tolerance) if self._doubly else self._spread() <= tolerance

    def disagreement(self) -> float:
        """Return what is left of the worst start's."""
        if not self._doubly:
            return self._spread()
        return float(np.linalg.norm(self._product - 1.0 / len(self._product), 2))

    def _norm_is_within(self, tolerance: float) -> bool:
        """Find the 2-norm only where one start, which power iteration draws to the worst, is within already."""
        image = self._product @ self._probe - self._probe.mean()
        if float(np.linalg.norm(image)) > tolerance * float(np.linalg.norm(self._probe)):
            worse: _Floats = self._product.T @ image - image.mean()
            self._probe = worse / np.linalg.norm(worse)
            return False
        return bool(np.linalg.norm(self._product - 1.0 / len(self._product), 2) <= tolerance)

    def _spread(self) -> float:
        weights = self._product.sum(axis=1, keepdims=True)
        if not (weights > 0.0).all():  # a push-sum weight that has run dry
            return math.inf
        debiased = self._product / weights
        return float((debiased.max(axis=0) - debiased.min(axis=0)).max())


class _RandomStarts:
    """What has become of random starts, (n, s), and of the push-sum weights, (n, 1)."""

    def __init__(self, count: int) -> None:
        self._x = _random_starts(count, _STARTS)
        self._w = np.ones((count, 1))
        self._before = self._disagreements()

    def mix(self, W: sparse.csr_array) -> None:
        self._x, self._w = W @ self._x, W @ self._w

    def agrees(self, tolerance: float) -> bool:
        return bool((self._disagreements() <= tolerance * self._before).all())

    def disagreement(self) -> float:
        """Return the largest of the starts'."""
        return float(self._disagreements().max())

    def _disagreements(self) -> _Floats:
        debiased = self._x / self._w
        return np.linalg.norm(debiased - debiased.mean(axis=0), axis=0)  # type: ignore[no-any-return]


def _random_starts(count: int, starts: int) -> _Floats:
    return stream(0, "starts").standard_normal((count, starts))
