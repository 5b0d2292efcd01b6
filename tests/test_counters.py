"""Cumulative counters: whatever gets lost on the way, what all hold and what they are still owed is what they had."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.counters import COUNTER, Given, Taken, counter_form
from peer.algorithms.dpsgd import AdaptThenCombine
from peer.algorithms.push_sum import PushSum
from peer.learner import wire_forms
from tests.four_peers import Matrix, random_rows, seeds

Arcs = frozenset[tuple[int, int]]
"""(sender, listener)."""


def vector(*numbers: float, dtype: torch.dtype = torch.float64) -> Message:
    return {"x": torch.tensor(numbers, dtype=dtype)}


# ---- One sender, one listener


def test_a_share_arrives() -> None:
    assert Taken().take(0, Given().give(1, 0.25, vector(4.0, 8.0)), vector(0.0, 0.0))["x"].tolist() == [1.0, 2.0]


def test_a_lost_message_comes_with_the_next_one() -> None:
    """A quarter of 4, then half of 6, of which nothing is heard until a quarter of 8 has been given as well."""
    given, taken, like = Given(), Taken(), vector(0.0)
    first, _, third = (given.give(1, share, vector(x)) for share, x in ((0.25, 4.0), (0.5, 6.0), (0.25, 8.0)))
    assert taken.take(0, first, like)["x"].item() == 1.0
    assert taken.take(0, third, like)["x"].item() == 3.0 + 2.0


def test_nothing_is_taken_twice() -> None:
    given, taken, like = Given(), Taken(), vector(0.0)
    said = given.give(1, 0.5, vector(6.0))
    assert taken.take(0, said, like)["x"].item() == 3.0
    assert taken.take(0, said, like)["x"].item() == 0.0


def test_each_listener_and_each_sender_has_a_counter_of_its_own() -> None:
    given, taken, like = Given(), Taken(), vector(0.0)
    assert given.give(1, 0.5, vector(6.0))["x"].item() == 3.0
    assert given.give(2, 0.25, vector(8.0))["x"].item() == 2.0
    assert given.give(1, 0.5, vector(2.0))["x"].item() == 4.0
    assert taken.take(7, vector(3.0), like)["x"].item() == 3.0
    assert taken.take(8, vector(5.0), like)["x"].item() == 5.0
    assert taken.take(7, vector(4.0), like)["x"].item() == 1.0


def test_what_was_sent_stays() -> None:
    """It may still be on its way, in the sender's own memory."""
    given = Given()
    said = given.give(1, 0.5, vector(6.0))
    given.give(1, 0.5, vector(2.0))
    assert said["x"].item() == 3.0


def test_each_tensor_of_a_message_is_counted() -> None:
    given, taken = Given(), Taken()
    message = {"x": torch.tensor([2.0, 4.0]), "w": torch.tensor([1.0])}
    for expected in (1, 2):
        counter = given.give(1, 0.5, message)
        assert counter["x"].tolist() == [1.0 * expected, 2.0 * expected]
        assert counter["w"].tolist() == [0.5 * expected]
    assert taken.take(0, counter, message)["w"].tolist() == [1.0]


# ---- Precision


def test_parameters_in_float32_travel_as_counters_in_float64() -> None:
    message = {"x": torch.ones(3, dtype=torch.float32), "w": torch.ones(1, dtype=torch.float32)}
    counter = Given().give(1, 0.5, message)
    assert {x.dtype for x in counter.values()} == {COUNTER} == {torch.float64}
    assert {x.dtype for x in Taken().take(0, counter, message).values()} == {torch.float32}
    assert {name: (x.shape, x.dtype) for name, x in counter_form(message).items()} == {
        "x": ((3,), torch.float64),
        "w": ((1,), torch.float64),
    }


def test_a_counter_that_has_grown_still_takes_in_small_shares() -> None:
    """2^24 + 1 is no number of float32; the difference of two counters would be 0 there."""
    given, taken, like = Given(), Taken(), vector(0.0, dtype=torch.float32)
    taken.take(0, given.give(1, 1.0, vector(2.0**24, dtype=torch.float32)), like)
    assert taken.take(0, given.give(1, 1.0, vector(1.0, dtype=torch.float32)), like)["x"].item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_an_algorithm_that_counts_has_counters_on_the_wire(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    [counted], [plain] = wire_forms(PushSum(), x), wire_forms(AdaptThenCombine(), x)
    assert {name: (t.shape, t.dtype) for name, t in counted.items()} == {
        "x": ((3,), torch.float64),
        "w": ((1,), torch.float64),
    }
    assert {name: (t.shape, t.dtype) for name, t in plain.items()} == {"x": ((3,), dtype)}


# ---- Many peers, messages that get lost


@dataclass
class Net:
    """Peers that share out x and w, (n, d) and (n, 1), over a net that loses messages.

    With counters, what was lost on an arc stays owed; without, each message holds one share and is lost for good.
    """

    x: Tensor
    counts: bool = True
    w: Tensor = field(init=False)
    owed: dict[tuple[int, int], Message] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.w = torch.ones(len(self.x), 1, dtype=self.x.dtype)
        self._given = [Given() for _ in self.x]
        self._taken = [Taken() for _ in self.x]
        self._said: dict[tuple[int, int], Message] = {}
        self._heard: dict[tuple[int, int], Message] = {}

    def round(self, shares: Matrix, lost: Arcs = frozenset()) -> None:
        """Let sender j give shares[i, j] of what it has to i, and keep the rest, but for the arcs (j, i) that are lost.

        As in `PushSum` and `Learner`: what is heard is added to what was kept, in node order.
        """
        n = len(self.x)
        messages = [{"x": self.x[j], "w": self.w[j]} for j in range(n)]
        x, w = torch.zeros_like(self.x), torch.zeros_like(self.w)
        for i in range(n):
            for j in range(n):
                if i == j:
                    came = {name: t * float(shares[i, i]) for name, t in messages[i].items()}
                elif shares[i, j]:
                    came = self._carry(j, i, float(shares[i, j]), messages[j], (j, i) in lost)
                else:
                    continue
                x[i] += came["x"]
                w[i] += came["w"]
        self.x, self.w = x, w

    def _carry(self, sender: int, listener: int, share: float, message: Message, is_lost: bool) -> Message:
        nothing = {name: torch.zeros_like(t) for name, t in message.items()}
        if not self.counts:
            return nothing if is_lost else {name: t * share for name, t in message.items()}
        arc = sender, listener
        self._said[arc] = self._given[sender].give(listener, share, message)
        if is_lost:
            return nothing
        self._heard[arc] = self._said[arc]
        return self._taken[listener].take(sender, self._said[arc], message)

    def total(self) -> tuple[Tensor, float]:
        """Return the sums of x and of w over all that the peers hold and all that they are still owed."""
        x, w = self.x.double().sum(dim=0), float(self.w.double().sum())
        for arc, said in self._said.items():
            heard = self._heard.get(arc, {name: torch.zeros_like(t) for name, t in said.items()})
            x, w = x + said["x"] - heard["x"], w + float(said["w"] - heard["w"])
        return x, w

    def z(self) -> Tensor:
        return self.x / self.w


def random_shares(seed: int, count: int, arcs: float) -> Matrix:
    """Return a random directed graph whose columns sum to 1: each peer keeps some, and shares out the rest."""
    draws = np.random.default_rng(seed)
    who = (draws.random((count, count)) < arcs) | np.eye(count, dtype=bool)
    shares = draws.uniform(0.1, 1.0, (count, count)) * who
    columns: Matrix = shares / shares.sum(axis=0)
    return columns


def random_losses(seed: int, count: int, share: float) -> Arcs:
    """Return the arcs on which messages are lost: that share of all, at random."""
    lost = np.random.default_rng(seed).random((count, count)) < share
    return frozenset((j, i) for j in range(count) for i in range(count) if lost[j, i] and i != j)


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 5),
    arcs=st.sampled_from([0.3, 1.0]),
    changes=st.booleans(),
    lost=st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0]), min_size=1, max_size=8),
    seed=seeds,
)
def test_no_mass_is_lost(count: int, arcs: float, changes: bool, lost: list[float], seed: int) -> None:
    """Under any pattern of losses, with graphs that stay or change: for x and for w, in each number."""
    net = Net(random_rows(seed, count, 3))
    start, size = net.x.sum(dim=0), float(net.x.abs().sum())
    for round, share in enumerate(lost):
        net.round(random_shares(seed + round * changes, count, arcs), random_losses(seed + round, count, share))
        x, w = net.total()
        torch.testing.assert_close(x, start, rtol=0, atol=1e-12 * size)
        assert w == pytest.approx(count, rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(
    count=st.integers(2, 4),
    lost=st.lists(st.sampled_from([0.3, 0.7, 1.0]), min_size=1, max_size=6),
    seed=seeds,
)
def test_once_messages_get_through_again_the_limit_is_the_mean(count: int, lost: list[float], seed: int) -> None:
    net = Net(random_rows(seed, count, 2))
    mean = net.x.mean(dim=0)
    for round, share in enumerate(lost):
        net.round(random_shares(seed + round, count, 0.5), random_losses(seed + round, count, share))
    for _ in range(80):
        net.round(random_shares(seed, count, 1.0))
    torch.testing.assert_close(net.z(), mean.expand(count, -1), rtol=1e-9, atol=1e-9)
    assert float(net.w.sum()) == pytest.approx(count, rel=1e-12), "nothing is owed any more"


def test_the_same_run_without_counters_loses_mass_and_misses_the_mean() -> None:
    """Three peers that give a third to each, and one message that is lost in the first round: that of peer 0 to 1."""
    thirds, lost = np.full((3, 3), 1 / 3), frozenset({(0, 1)})
    start = torch.tensor([[9.0], [0.0], [0.0]], dtype=torch.float64)
    limits: list[Sequence[float]] = []
    for counts in (True, False):
        net = Net(start, counts=counts)
        net.round(thirds, lost)
        assert net.w[:, 0].tolist() == pytest.approx([1, 2 / 3, 1])
        for _ in range(2):
            net.round(thirds)
        limits.append([*net.z()[:, 0].tolist(), float(net.x.sum()), float(net.w.sum())])
    assert limits[0] == pytest.approx([3.0] * 3 + [9.0, 3.0])
    assert limits[1] == pytest.approx([6.0 / (8 / 3)] * 3 + [6.0, 8 / 3])


def test_in_float32_no_mass_is_lost_but_to_the_rounding_of_what_is_held() -> None:
    """1000 rounds in which a third of the messages are lost: counters grow to hundreds of times what is held."""
    draws = np.random.default_rng(5)
    net = Net(torch.tensor([[100.0], [200.0], [300.0]], dtype=torch.float32))
    halves = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    for _ in range(1000):
        net.round(halves, frozenset((j, i) for j in range(3) for i in range(3) if i != j and draws.random() < 1 / 3))
    net.round(halves)
    x, w = net.total()
    assert x.item() == pytest.approx(600.0, rel=1e-5)
    assert w == pytest.approx(3.0, rel=1e-5)
