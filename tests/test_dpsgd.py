"""D-PSGD in both orders: the traces of four peers in a ring, and what theory says of them.

The peers' losses are 0.5 (x_i w - y_i)^2 with (x, y) = (1, 3), (2, 5), (3, 7), (4, 9); all start at w = 1.5, lr is 0.1,
and each weight of the ring is 1/3. The traces are exact fractions computed apart from this program
(truth/traces.json, dpsgd_ring4).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Message
from peer.algorithms.dpsgd import AdaptThenCombine, CombineThenAdapt
from peer.learner import Learner, Said
from peer.task.local import Schedule
from peer.task.task import Wish, prepare

torch.set_num_threads(1)

THIRD = 1 / 3
RING = np.array(
    [[THIRD, THIRD, 0, THIRD], [THIRD, THIRD, THIRD, 0], [0, THIRD, THIRD, THIRD], [THIRD, 0, THIRD, THIRD]]
)
ROWS = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]
START = 1.5

ATC = """
    25/12 29/15 137/60 11/5
    441/200 1999/900 4061/1800 407/180
    13721/6000 12497/5400 124229/54000 61681/27000
    418561/180000 76429/32400 3751877/1620000 1867729/810000
    12644377/5400000 57832009/24300000 112807829/48600000 11244257/4860000
"""
CTA = """
    33/20 19/10 9/4 27/10
    1331/600 163/75 283/120 37/25
    36637/18000 3571/1500 7133/3600 14629/4500
    1432139/540000 294329/135000 12331/4320 12317/15000
    31092253/16200000 3631709/1350000 4804781/3240000 17801371/4050000
"""
ATC_FIXED_POINT = "2758/1171 8420/3513 2724/1171 16301/7026"
CTA_SPECTRAL_RADIUS = 1.4812202683960098


def learners(algorithm: Algorithm, lr: float = 0.1, starts: list[float] | None = None) -> list[Learner]:
    """The four peers, each with a trainer of its own, as daemons have."""
    made = []
    for me in range(4):
        wish = Wish(
            model="linear",
            data="inline",
            names=[f"peer-{i}" for i in range(4)],
            seed=0,
            schedule=Schedule(lr=lr, batch_size=0),
            dtype=torch.float64,
            shards=ROWS,
            starts=[[start] for start in starts or [START] * 4],
        )
        task = prepare(wish)
        cpu = torch.device("cpu")
        made.append(Learner(me, algorithm, task.trainer(cpu), task.start(me), task.shard(me, cpu), None))
    return made


def play(peers: list[Learner], round: int, W: np.ndarray = RING) -> list[float]:
    """Let all peers do one round; returns their parameters."""
    messages = [peer.train(round) for peer in peers]
    for peer in peers:
        heard = [Said(W[peer.me, j], j, messages[j]) for j in range(len(peers)) if W[peer.me, j]]
        assert peer.mix(0, heard) == (None, ())
    return [peer.params().item() for peer in peers]


def exact(line: str) -> list[float]:
    return [float(Fraction(text)) for text in line.split()]


@pytest.mark.parametrize(("algorithm", "trace"), [(AdaptThenCombine(), ATC), (CombineThenAdapt(), CTA)])
def test_the_traces_of_the_ring(algorithm: Algorithm, trace: str) -> None:
    peers = learners(algorithm)
    for round, line in enumerate(trace.strip().splitlines()):
        assert play(peers, round) == pytest.approx(exact(line), rel=1e-12)


def test_adapt_then_combine_reaches_its_fixed_point() -> None:
    """x* = W (x* - lr g(x*)), to which a spectral radius of 0.452 leads in 60 rounds."""
    peers = learners(AdaptThenCombine())
    for round in range(60):
        found = play(peers, round)
    assert found == pytest.approx(exact(ATC_FIXED_POINT), rel=1e-12)


def test_combine_then_adapt_stands_no_such_learning_rate() -> None:
    """Its iteration W - lr diag(x^2) has spectral radius 1.481: so fast do the steps grow."""
    peers = learners(CombineThenAdapt())
    x = np.array([play(peers, round) for round in range(80)])
    steps = np.linalg.norm(np.diff(x, axis=0), axis=1)
    assert steps[-1] / steps[-2] == pytest.approx(CTA_SPECTRAL_RADIUS, rel=1e-6)


@pytest.mark.parametrize("algorithm", [AdaptThenCombine(), CombineThenAdapt()])
def test_without_learning_the_mean_stays_and_the_distance_shrinks_by_slem(algorithm: Algorithm) -> None:
    """The ring's eigenvalues are 1, 1/3, 1/3 and -1/3 (Xiao & Boyd 2004, theorem 1)."""
    starts = [1.0, -2.0, 7.0, 4.0]
    peers = learners(algorithm, lr=0.0, starts=starts)
    distance = np.var(starts)
    for round in range(10):
        x = play(peers, round)
        assert np.mean(x) == pytest.approx(2.5, rel=1e-12)
        assert np.var(x) <= distance / 9 + 1e-15
        distance = np.var(x)


def test_with_all_to_all_links_adapt_then_combine_is_gradient_descent_on_the_mean_loss() -> None:
    """x <- x - lr mean_i g_i(x): x^2 and xy have means 7.5 and 17.5, so that x <- x - lr (7.5 x - 17.5)."""
    peers = learners(AdaptThenCombine())
    w = START
    for round in range(5):
        w -= 0.1 * (7.5 * w - 17.5)
        assert play(peers, round, np.full((4, 4), 0.25)) == pytest.approx([w] * 4, rel=1e-12)


@pytest.mark.parametrize("algorithm", [AdaptThenCombine(), CombineThenAdapt()])
def test_a_peer_alone_does_gradient_descent(algorithm: Algorithm) -> None:
    peers = learners(algorithm)
    play(peers, 0, np.eye(4))
    assert play(peers, 1, np.eye(4))[1] == pytest.approx(1.5 - 0.1 * (4 * 1.5 - 10) - 0.1 * (4 * 1.9 - 10), rel=1e-12)


# ---- Row-wise: the same functions on all peers at once


@dataclass(frozen=True)
class _Rows:
    """W @ x for messages as rows."""

    message: Message

    def sum(self) -> Message:
        return {name: torch.from_numpy(RING) @ x for name, x in self.message.items()}

    def edges(self) -> Edges:
        raise NotImplementedError


@pytest.mark.parametrize("algorithm", [AdaptThenCombine(), CombineThenAdapt()])
def test_on_rows_it_is_the_same_algorithm(algorithm: Algorithm) -> None:
    h, hy = torch.tensor([[1.0], [4.0], [9.0], [16.0]]).double(), torch.tensor([[3.0], [10.0], [21.0], [36.0]]).double()

    def delta(x: Tensor) -> Tensor:
        return -0.1 * (h * x - hy)

    peers = learners(algorithm)
    state = algorithm.init(torch.full((4, 1), START, dtype=torch.float64))
    for round in range(6):
        state = algorithm.learned(state, delta(algorithm.at(state)), 0.1)
        state, message = algorithm.message(state, 0, None)
        state = algorithm.update(state, 0, _Rows(message))
        assert algorithm.params(state)[:, 0].tolist() == pytest.approx(play(peers, round), rel=1e-12)


@pytest.mark.parametrize("algorithm", [AdaptThenCombine(), CombineThenAdapt()])
def test_what_was_sent_does_not_change_afterwards(algorithm: Algorithm) -> None:
    """A daemon sends from the tensor's own memory, while the next step computes."""
    peers = learners(algorithm)
    messages = [peer.train(0) for peer in peers]
    before = [message["x"].clone() for message in messages]
    said = [Said(0.25, j, message) for j, message in enumerate(messages)]
    for peer in peers:
        peer.mix(0, said)
        peer.train(1)
    assert all(torch.equal(message["x"], x) for message, x in zip(messages, before, strict=True))
