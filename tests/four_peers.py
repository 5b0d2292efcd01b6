"""Four peers with one row of data each, played by hand: one by one as daemons are, and all at once as rows.

It is the problem of truth/traces.json. The peers' losses are 0.5 (x w - y)^2 with (x, y) = (1, 3), (2, 5), (3, 7),
(4, 9): curvatures 1, 4, 9, 16, optima 3, 5/2, 7/3, 9/4, and the mean loss is least at 7/3. All start at w = 1.5.
What the file holds was computed apart from this program, to ten digits or as exact fractions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import topology
from peer.algorithms.algorithm import Algorithm, Edges, Message, State
from peer.algorithms.combine import HeardMessages
from peer.learner import Learner, Said
from peer.protocol.messages import Neighbourhood, Shares
from peer.task.local import Schedule
from peer.task.task import Wish, prepare

torch.set_num_threads(1)

Matrix = NDArray[np.float64]

TRACES: dict[str, Any] = json.loads((Path(__file__).parent / "truth" / "traces.json").read_text(encoding="utf-8"))
DIGITS = 1e-9
"""Relative: the file rounds to ten digits."""

SHARDS = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]
CURVATURES = torch.tensor([[1.0], [4.0], [9.0], [16.0]], dtype=torch.float64)
SLOPES = torch.tensor([[3.0], [10.0], [21.0], [36.0]], dtype=torch.float64)
START = 1.5
OPTIMUM = 7 / 3

RING: Matrix = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
LAZY: Matrix = (np.eye(4) + RING) / 2
COMPLETE: Matrix = np.full((4, 4), 0.25)
SAMPLES: Matrix = np.tile([0.1, 0.2, 0.3, 0.4], (4, 1))
"""Everyone's weights are 10/20/30/40, as if these were the rows of the shards: FedAvg's server, without one."""


def numbers(texts: Sequence[str]) -> list[float]:
    """Return exact fractions as floats."""
    return [float(Fraction(text)) for text in texts]


# ---- One by one: each peer has a learner of its own, and hears messages


def learners(
    algorithm: Algorithm,
    *,
    W: Matrix = RING,
    lr: float = 0.1,
    starts: Sequence[float] = (START,) * 4,
    local_steps: int = 1,
    proximal_mu: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> list[Learner]:
    """Return the four peers, each with a trainer of its own."""
    made = []
    for me in range(4):
        wish = Wish(
            model="linear",
            data="inline",
            names=[f"peer-{i}" for i in range(4)],
            seed=0,
            schedule=Schedule(lr=lr, batch_size=0, local_steps=local_steps, proximal_mu=proximal_mu),
            dtype=dtype,
            shards=SHARDS,
            starts=[[start] for start in starts],
        )
        task, cpu = prepare(wish), torch.device("cpu")
        around = partial(neighbourhood, W, me)
        made.append(Learner(me, algorithm, task.trainer(cpu), task.start(me), task.shard(me, cpu), None, around))
    return made


def neighbourhood(W: Matrix, me: int, round: int = 0) -> Neighbourhood:
    """Return a peer's row and column of the mixing matrix, which is the same in every round."""
    everyone = range(len(W))
    return Neighbourhood(
        {j: float(W[me, j]) for j in everyone if j == me or W[me, j]},
        {j: float(W[j, me]) for j in everyone if j != me and W[j, me]},
    )


def play(peers: Sequence[Learner], round: int, W: Matrix = RING) -> list[float]:
    """Let all peers do one round in which nothing is lost; returns their parameters."""
    messages: list[Message | Shares | None] = [peer.train(round) for peer in peers]
    for exchange in range(peers[0].algorithm.exchanges):
        outcomes = [peer.mix(exchange, heard_by(peer.me, messages, W)) for peer in peers]
        assert all(outcome.rejected == outcome.far == () for outcome in outcomes)
        messages = [outcome.message for outcome in outcomes]
    assert messages == [None] * len(peers)
    return [peer.params().item() for peer in peers]


def check_what_was_sent_stays(algorithm: Algorithm) -> None:
    """A daemon sends from a tensor's own memory, while the next step computes."""
    peers, kept = learners(algorithm), []
    for round in range(3):
        messages: list[Message | Shares | None] = [peer.train(round) for peer in peers]
        for exchange in range(algorithm.exchanges):
            kept += [(x, x.clone()) for message in messages for x in _tensors(message)]
            messages = [peer.mix(exchange, heard_by(peer.me, messages, RING)).message for peer in peers]
    assert all(torch.equal(x, then) for x, then in kept)


def _tensors(message: Message | Shares | None) -> list[Tensor]:
    assert message is not None
    parts = [message.own, *message.to.values()] if isinstance(message, Shares) else [message]
    return [x for part in parts for x in part.values()]


def heard_by(me: int, messages: Sequence[Message | Shares | None], W: Matrix) -> list[Said]:
    """Return what a peer hears, in node order, weighted as `Gossip` weights it."""
    said = []
    for j, message in enumerate(messages):
        assert message is not None
        if isinstance(message, Shares):
            if j == me:
                said.append(Said(float(W[me, me]), j, message.own))
            elif me in message.to:
                said.append(Said(1.0, j, message.to[me]))
        elif j == me or W[me, j]:
            said.append(Said(float(W[me, j]), j, message))
    return said


# ---- All at once: states are rows, and a round is W @ messages


@dataclass(frozen=True)
class HeardByAll:
    """The messages of all peers as rows, mixed with W."""

    W: Matrix
    message: Message

    def sum(self) -> Message:
        return {name: torch.from_numpy(self.W).to(x.dtype) @ x for name, x in self.message.items()}

    def edges(self) -> Edges:
        raise AssertionError("the algorithms here ask for the sum alone")


def gradient(x: Tensor) -> Tensor:
    """Return the gradients of the four losses, (4, 1)."""
    return CURVATURES * x - SLOPES


def starting(algorithm: Algorithm) -> State:
    """Return the state of the four peers at the start."""
    return algorithm.init(torch.full((4, 1), START, dtype=torch.float64))


def step(algorithm: Algorithm, state: State, delta: Tensor, lr: float, W: Matrix) -> State:
    """Return the state after one round in which the peers have found `delta`, (n, d), by themselves."""
    state = algorithm.learned(state, delta, lr)
    for k in range(algorithm.exchanges):
        state, message = algorithm.message(state, k, None)
        state = algorithm.update(state, k, HeardByAll(W, message))
    return state


def descend(algorithm: Algorithm, state: State, lr: float, W: Matrix = RING) -> State:
    """Return the state after one round with the four losses."""
    return step(algorithm, state, -lr * gradient(algorithm.at(state)), lr, W)


def after(algorithm: Algorithm, rounds: int, lr: float, W: Matrix = RING) -> list[float]:
    """Return the parameters of the four peers after so many rounds."""
    state = starting(algorithm)
    for _ in range(rounds):
        state = descend(algorithm, state, lr, W)
    return algorithm.params(state)[:, 0].tolist()


def moduli(algorithm: Algorithm, lr: float, W: Matrix = RING) -> list[float]:
    """Return the moduli of the eigenvalues of one round, the greatest first.

    A round is affine in the state, since the gradients are: its linear part is found by moving each number in turn.
    """
    state = descend(algorithm, starting(algorithm), lr, W)  # the first round may differ

    def next_of(flat: Matrix) -> Matrix:
        parts = np.split(flat, np.cumsum([t.numel() for t in state.values()])[:-1])
        moved = {name: torch.from_numpy(x).view(t.shape) for (name, t), x in zip(state.items(), parts, strict=True)}
        later = descend(algorithm, moved, lr, W)
        return np.concatenate([later[name].numpy().ravel() for name in state])

    here = np.concatenate([t.numpy().ravel() for t in state.values()])
    origin = next_of(here)
    linear = np.stack([next_of(here + unit) - origin for unit in np.eye(len(here))], axis=1)
    return sorted(np.abs(np.linalg.eigvals(linear)).tolist(), reverse=True)


# ---- Theorems that several algorithms share. They draw from a seed, which is part of what a failure shows


@st.composite
def doubly_stochastic(draw: st.DrawFn) -> Matrix:
    """Return a random mixing matrix whose rows and columns sum to 1: a mean of permutations (Birkhoff 1946)."""
    count = draw(st.integers(1, 6))
    orders = draw(st.lists(st.permutations(range(count)), min_size=1, max_size=4))
    mean: Matrix = np.mean([np.eye(count)[list(order)] for order in orders], axis=0)
    return mean


@st.composite
def symmetric(draw: st.DrawFn) -> Matrix:
    """Return the mixing matrix of a random graph, which may fall apart."""
    count = draw(st.integers(2, 7))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    graph = nx.empty_graph(count)
    graph.add_edges_from(draw(st.sets(st.sampled_from(pairs))))
    W: Matrix = topology.mixing_matrix(graph, draw(st.sampled_from(["metropolis", "lazy"]))).toarray()
    return W


seeds = st.integers(0, 2**32 - 1)


def random_rows(seed: int, *shape: int) -> Tensor:
    """Return numbers of the size of 1."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def check_the_mean_moves_by_the_mean_step(algorithm: Algorithm, W: Matrix, seed: int, rounds: int = 4) -> None:
    """mean(x+) = mean(x) + mean(delta), whatever the peers find by themselves."""
    count, lr = len(W), 0.1
    found = random_rows(seed, rounds + 1, count, 3)
    state = algorithm.init(found[0])
    for delta in found[1:]:
        expected = (algorithm.params(state) + delta).mean(dim=0)
        state = step(algorithm, state, delta, lr, W)
        torch.testing.assert_close(algorithm.params(state).mean(dim=0), expected, rtol=1e-12, atol=1e-12)


def check_the_distance_shrinks_by_slem(algorithm: Algorithm, W: Matrix, seed: int, rounds: int = 4) -> None:
    """||W x - mean|| <= slem ||x - mean|| for a symmetric W (Xiao & Boyd 2004, theorem 1), round by round."""
    slem = np.sort(np.abs(np.linalg.eigvalsh(W)))[-2]
    state = algorithm.init(random_rows(seed, len(W), 3))
    distance = consensus_distance(algorithm.params(state))
    for _ in range(rounds):
        state = step(algorithm, state, torch.zeros(len(W), 3, dtype=torch.float64), 0.0, W)
        before, distance = distance, consensus_distance(algorithm.params(state))
        assert distance <= slem**2 * before * (1 + 1e-12) + 1e-30


def consensus_distance(x: Tensor) -> float:
    """Return (1/n) sum_i ||x_i - mean||^2 of rows, (n, d)."""
    return float(((x - x.mean(dim=0)) ** 2).sum() / len(x))


def check_rows_are_peers(algorithm: Algorithm, W: Matrix, seed: int, size: int = 3, rounds: int = 4) -> None:
    """The rows (n, d) and n vectors (d,) give the same messages and states, exchange by exchange."""
    count, lr = len(W), 0.1
    found = random_rows(seed, rounds + 1, count, size)
    together, single = algorithm.init(found[0]), [algorithm.init(x) for x in found[0]]
    for delta in found[1:]:
        _alike(algorithm.at(together), [algorithm.at(state) for state in single])
        together = algorithm.learned(together, delta, lr)
        single = [algorithm.learned(state, part, lr) for state, part in zip(single, delta, strict=True)]
        for k in range(algorithm.exchanges):
            together, said = algorithm.message(together, k, None)
            single, each = map(list, zip(*(algorithm.message(state, k, None) for state in single), strict=True))
            _all_alike(said, each)
            together = algorithm.update(together, k, HeardByAll(W, said))
            heard = [
                HeardMessages(tuple((float(W[i, j]), each[j], i == j) for j in range(count))) for i in range(count)
            ]
            single = [algorithm.update(state, k, own) for state, own in zip(single, heard, strict=True)]
            _all_alike(together, single)
            parameters = algorithm.parameters_in(said, k)
            if parameters is not None:
                _alike(parameters, [algorithm.parameters_in(message, k) for message in each])
        _alike(algorithm.params(together), [algorithm.params(state) for state in single])


def _all_alike(rows: State, vectors: Sequence[State]) -> None:
    for name, x in rows.items():
        _alike(x, [vector[name] for vector in vectors])
    assert all(rows.keys() == vector.keys() for vector in vectors)


def _alike(rows: Tensor, vectors: Sequence[Tensor | None]) -> None:
    stacked = torch.stack([vector for vector in vectors if vector is not None])
    torch.testing.assert_close(rows, stacked, rtol=1e-12, atol=1e-12)
