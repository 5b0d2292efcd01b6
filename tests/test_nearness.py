"""The metric "model" for all peers at once: against a plain loop over all pairs, and against the gossip cores."""

from math import dist
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from peer.protocol.messages import Data
from peer.simulator.nearness import Nearness
from tests.fake_link import Bed, Metric

FAR = 5.0
"""The threshold. Two peers whose numbers are 3 and 4 apart are at it, and not beyond."""

LINE = csr_array([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]])
"""0 - 1 - 2."""


def rows(*x: float) -> torch.Tensor:
    """One number of each peer."""
    return torch.tensor(x, dtype=torch.float64).view(-1, 1)


# ---- By hand


def test_apart_and_near_again() -> None:
    nearness = Nearness(LINE, FAR, look_again=3)
    assert nearness.talking(0) == 4
    apart = [[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    assert nearness.matrix(0, rows(0.0, 1.0, 7.0)).toarray().tolist() == apart
    for round in (1, 2):  # nobody looks, however near they have come
        assert nearness.talking(round) == 2
        assert nearness.matrix(round, rows(0.0, 1.0, 1.0)).toarray().tolist() == apart
    assert nearness.talking(3) == 4
    assert nearness.matrix(3, rows(0.0, 1.0, 1.0)).toarray().tolist() == LINE.toarray().tolist()
    assert nearness.talking(4) == 4


def test_at_the_threshold_is_near() -> None:
    at, beyond = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.001]])
    pair = csr_array([[0.5, 0.5], [0.5, 0.5]])
    assert Nearness(pair, FAR, 1).matrix(0, at).toarray().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert Nearness(pair, FAR, 1).matrix(0, beyond).toarray().tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_distances_whose_squares_no_float32_holds() -> None:
    x = torch.tensor([[0.0, 0.0], [1e30, 1e30]])
    pair = csr_array([[0.5, 0.5], [0.5, 0.5]])
    assert Nearness(pair, 2e30, 1).matrix(0, x).toarray().tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_who_hears_nobody_keeps_itself() -> None:
    alone = csr_array(([1.0, 0.0, 1.0], ([0, 0, 1], [0, 1, 1])), shape=(2, 2))  # a weight of 0 is none
    nearness = Nearness(alone, FAR, 1)
    assert nearness.talking(0) == 0
    assert nearness.matrix(0, rows(0.0, 100.0)).toarray().tolist() == [[1.0, 0.0], [0.0, 1.0]]


# ---- A plain loop


class Plain:
    """The same, one pair after the other."""

    def __init__(self, matrix: NDArray[np.float64], look_again: int) -> None:
        self._matrix = matrix
        self._look_again = look_again
        self._looks_again = np.zeros(matrix.shape, dtype=int)

    def talking(self, round: int) -> int:
        return sum(self._looks_again[i, j] <= round for i, j in self._pairs())

    def matrix(self, round: int, x: list[list[float]]) -> NDArray[np.float64]:
        near = self._matrix.copy()
        for i, j in self._pairs():
            looks = self._looks_again[i, j] <= round
            if looks and dist(x[i], x[j]) > FAR:
                self._looks_again[i, j] = round + self._look_again
            if not looks or dist(x[i], x[j]) > FAR:
                near[i, i] += near[i, j]
                near[i, j] = 0.0
        return near

    def _pairs(self) -> list[tuple[int, int]]:
        n = len(self._matrix)
        return [(i, j) for i in range(n) for j in range(n) if i != j and self._matrix[i, j] != 0.0]


@st.composite
def undirected(draw: st.DrawFn) -> NDArray[np.float64]:
    """Weights of 2 to 6 peers who hear each other, not always with the same weight; some hear nobody."""
    n = draw(st.integers(2, 6), label="peers")
    peers = st.integers(0, n - 1)
    edges = {(i, j) for i, j in draw(st.sets(st.tuples(peers, peers), max_size=12)) if i != j}
    matrix = np.zeros((n, n))
    for i, j in sorted(edges | {(j, i) for i, j in edges}):
        matrix[i, j] = (1 + (3 * i + 5 * j) % 4) / 64
    return matrix + np.diag(1.0 - matrix.sum(axis=1))


whole = st.integers(-6, 6).map(float)
settled = settings(deadline=None, max_examples=60, print_blob=True)


@settled
@given(matrix=undirected(), look_again=st.integers(1, 4), data=st.data())
def test_the_same_as_pair_by_pair(matrix: NDArray[np.float64], look_again: int, data: st.DataObject) -> None:
    nearness, plain = Nearness(csr_array(matrix), FAR, look_again), Plain(matrix, look_again)
    vectors = st.lists(st.lists(whole, min_size=2, max_size=2), min_size=len(matrix), max_size=len(matrix))
    for round in range(6):
        x = data.draw(vectors)
        assert nearness.talking(round) == plain.talking(round)
        found = nearness.matrix(round, torch.tensor(x)).toarray()
        assert found.tolist() == plain.matrix(round, x).tolist()  # the weights are 64ths: nothing is rounded


# ---- The gossip cores


@settled
@given(
    matrix=undirected(),
    threshold=st.sampled_from([0.3, 0.7, 1.5, 2.5]),
    look_again=st.integers(1, 4),
    random=st.builds(Random, st.integers(0, 2**32 - 1)),
)
def test_the_same_pairs_are_away_as_for_the_gossip_cores(
    matrix: NDArray[np.float64], threshold: float, look_again: int, random: Random
) -> None:
    n, rounds = len(matrix), 8
    bed = Bed([matrix.tolist()], rounds, metric=Metric(threshold, look_again))
    bed.join_all()
    bed.run(random)
    nearness = Nearness(csr_array(matrix), threshold, look_again)
    for round in range(rounds):
        x = [bed.said[round, 0, i] for i in range(n)]
        assume(all(abs(abs(a - b) - threshold) > 1e-9 for a in x for b in x))
        sent = [message for _, _, message in bed.sent if isinstance(message, Data) and message.round == round]
        assert nearness.talking(round) == len(sent)
        found = nearness.matrix(round, rows(*x)).toarray()
        for i in range(n):
            weights = bed.weights[round, 0, i]
            assert {j for j in range(n) if j == i or found[i, j]} == weights.keys()
            assert found[i, sorted(weights)].tolist() == pytest.approx([weights[j] for j in sorted(weights)])
