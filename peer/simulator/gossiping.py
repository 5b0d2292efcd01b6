"""Rounds of gossip for all peers at once: their states are the rows of matrices, and a round is `W @ M`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Message
from peer.assembly import Assembly
from peer.learner import wire_forms
from peer.record import Divergence
from peer.simulator.in_step import first_diverged, norms
from peer.simulator.nearness import Nearness
from peer.simulator.steps import Steps
from peer.task.task import Task


@dataclass(frozen=True, eq=False)
class Rows:
    """A mixing matrix that mixes messages given as rows, (n, m). `matrix` is None for the mean of all.

    The weight of what is not finite goes to each receiver itself, to nobody if not `keeps_sum`.
    """

    matrix: csr_array | None
    keeps_sum: bool = True

    def mix(self, x: Tensor, finite: Tensor | None = None) -> Tensor:
        """Return W @ x, (n, m); rows that are not finite, (n,), are heard by nobody but themselves."""
        finite = torch.isfinite(x).all(dim=1) if finite is None else finite
        if self.matrix is None:
            return _mean_of_all(x, finite)
        if bool(finite.all()):
            return _product(self.matrix, x)
        return _product_without(self.matrix, x, finite.cpu().numpy(), self.keeps_sum)


@dataclass(frozen=True, eq=False)
class HeardRows:
    """What all peers have heard in one exchange: their messages as rows."""

    rows: Rows
    message: Message

    def sum(self) -> Message:
        return self._sum

    @cached_property
    def _sum(self) -> Message:
        finite = torch.stack([torch.isfinite(x).all(dim=1) for x in self.message.values()]).all(dim=0)
        return {name: self.rows.mix(x, finite) for name, x in self.message.items()}  # each message whole, or not at all

    def edges(self) -> Edges:
        like = next(iter(self.message.values()))
        n = len(like)
        matrix = (self.rows.matrix if self.rows.matrix is not None else csr_array(np.full((n, n), 1 / n))).tocoo()
        others = matrix.row != matrix.col
        receivers = torch.from_numpy(matrix.row[others].astype(np.int64)).to(like.device)
        senders = torch.from_numpy(matrix.col[others].astype(np.int64)).to(like.device)
        weights = torch.from_numpy(matrix.data[others]).to(like.device, like.dtype).view(-1, 1)
        own = {name: x[receivers] for name, x in self.message.items()}
        return Edges(receivers, weights, own, {name: x[senders] for name, x in self.message.items()})


class Gossiping:
    """All peers of one experiment without a coordinator."""

    def __init__(self, assembly: Assembly, task: Task, steps: Steps, x: Tensor) -> None:
        self.gradients = 0
        self._names = assembly.names
        self._algorithm = assembly.fitted(task.layout)
        self._steps = steps
        self._state = self._algorithm.init(x)
        self._mixing = _Mixing(assembly, self._algorithm, x)
        self._at_start = norms(self.params())

    @property
    def payload_bytes(self) -> int:
        return self._mixing.payload_bytes

    def advance(self, round: int, stop: Callable[[], bool]) -> None:
        algorithm = self._algorithm
        delta, lr = self._steps.train(algorithm.at(self._state), round, stop)
        state = algorithm.learned(self._state, delta, lr)
        for k in range(algorithm.exchanges):
            state, message = algorithm.message(state, k, None)
            state = algorithm.update(state, k, self._mixing.heard(round, k, message))
        self._state = state
        self.gradients += len(self._names) * self._steps.per_round

    def params(self) -> Tensor:
        return self._algorithm.params(self._state)

    def diverged(self, round: int) -> Divergence | None:
        return first_diverged(self._names, self.params(), self._at_start, round)


# ---- Mixing


class _Mixing:
    """The mixing matrix of each round, and what its messages weigh."""

    def __init__(self, assembly: Assembly, algorithm: Algorithm, x: Tensor) -> None:
        self.payload_bytes = 0
        self._assembly = assembly
        self._algorithm = algorithm
        self._dtype = np.float64 if x.dtype == torch.float64 else np.float32
        self._message_bytes = [
            sum(t.numel() * t.element_size() for t in form.values()) for form in wire_forms(algorithm, x[0])
        ]
        threshold = assembly.model_threshold
        self._nearness = None if threshold is None else Nearness(assembly.mixing(0), threshold, assembly.look_again)
        self._kept: tuple[int, Rows, int] | None = None

    def heard(self, round: int, exchange: int, message: Message) -> HeardRows:
        """Return what all peers hear of each other's messages in an exchange of a round."""
        rows, messages = self._of(round, exchange, message)
        self.payload_bytes += messages * self._message_bytes[exchange]
        return HeardRows(rows, message)

    def _of(self, round: int, exchange: int, message: Message) -> tuple[Rows, int]:
        """Return the mixing of a round and how many messages travel in one of its exchanges."""
        if self._nearness is not None:
            said = self._algorithm.parameters_in(message, exchange)
            assert said is not None, "the metric goes with algorithms that say their parameters"
            talking = self._nearness.talking(round)
            return self._rows(self._nearness.matrix(round, said)), talking
        at = round % self._assembly.period if self._assembly.period else round
        if self._kept is None or self._kept[0] != at:
            rows = Rows(None) if self._assembly.everyone else self._rows(self._assembly.mixing(round))
            self._kept = at, rows, self._assembly.messages_in(round)
        return self._kept[1], self._kept[2]

    def _rows(self, matrix: csr_array) -> Rows:
        return Rows(csr_array(matrix.astype(self._dtype)), keeps_sum=self._algorithm.absent != "count")


def _product(matrix: csr_array, x: Tensor) -> Tensor:
    if x.device.type == "cpu":
        product: np.ndarray = matrix @ x.numpy()
        return torch.from_numpy(product)
    on_device = torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data),
        matrix.shape,
        device=x.device,
    )
    mixed: Tensor = torch.sparse.mm(on_device, x)
    return mixed


def _product_without(matrix: csr_array, x: Tensor, finite: np.ndarray, keeps_sum: bool) -> Tensor:
    """Mix among the finite rows; what a peer would have given to the others goes to itself if `keeps_sum`."""
    kept = csr_array(matrix @ diags_array(finite.astype(matrix.dtype)))
    missing = np.asarray(matrix.sum(axis=1) - kept.sum(axis=1)).ravel() * keeps_sum
    among = csr_array(kept + diags_array(missing.astype(matrix.dtype)))
    ok = torch.from_numpy(finite).to(x.device)
    mixed = _product(among, torch.where(ok[:, None], x, torch.zeros_like(x)))
    return torch.where(ok[:, None], mixed, x)


def _mean_of_all(x: Tensor, finite: Tensor) -> Tensor:
    if bool(finite.all()):
        return x.mean(dim=0).expand_as(x)
    n = len(x)
    others = torch.where(finite[:, None], x, torch.zeros_like(x)).sum(dim=0)
    mixed = (others + x * (n - finite.sum())) / n  # the shares of those that are not heard go to oneself
    return torch.where(finite[:, None], mixed, x)
