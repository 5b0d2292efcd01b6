"""The rounds engine: all peers as the rows of one matrix; a round is a vectorised local step and `W @ M`.

There are no messages and no time. It is the fast way to see what an algorithm does on a topology.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Message
from peer.assembly import Assembly
from peer.divergence import which_diverged
from peer.errors import TrainingError
from peer.history import Figures, earliest, peer_score
from peer.learner import judge, wire_forms
from peer.record import Divergence, Ended, Row
from peer.simulator.nearness import Nearness
from peer.simulator.together import vectorised
from peer.simulator.watching import Watch
from peer.task.local import Interrupted, Memory, PureGossip, Shard
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


class _Steps:
    """The local steps of all peers, vectorised where the model allows it."""

    def __init__(self, task: Task, wanted: str, device: torch.device, x: Tensor) -> None:
        self.trainer = task.trainer(device)
        self.shards: Sequence[Shard | None] = task.shards(device)
        self.memories: list[Memory] = []
        self.rows = vectorised(task, self.trainer, self.shards, wanted, x)
        self.step = self.rows.step if self.rows is not None else self.trainer.step
        if self.rows is None and not isinstance(self.trainer, PureGossip):
            self.memories = [self.trainer.memory() for _ in range(len(x))]

    def train(self, x: Tensor, round: int, stop: Callable[[], bool]) -> tuple[Tensor, float]:
        """Return what the local steps add to x, (n, d), and their learning rate."""
        if isinstance(self.trainer, PureGossip):
            return torch.zeros_like(x), 0.0
        if self.rows is not None:
            return self.rows.train(x, [s for s in self.shards if s is not None], round, stop)
        learned = [self.trainer.train(x[i], self.memories[i], self.shards[i], i, round, stop) for i in range(len(x))]
        return torch.stack([item.delta for item in learned]), learned[0].lr

    def memory(self, peer: int) -> Memory:
        return self.memories[peer] if self.memories else Memory()


def run(
    assembly: Assembly,
    task: Task,
    device: torch.device,
    watch: Watch,
    stop: Callable[[], bool],
    enough: Callable[[Row], bool] | None = None,
) -> Ended:
    """Run the experiment to its end, or until `stop` says so. `enough(entry)` says whether it may end after it."""
    e, algorithm, n = assembly.experiment, assembly.fitted(task.layout), len(assembly.names)
    x = torch.stack([task.start(i) for i in range(n)]).to(device)
    steps = _Steps(task, e.task.step, device, x)
    mixing = _Mixing(assembly, algorithm, x)
    watch.history.gossiped = assembly.shared_columns(task.layout)
    state = algorithm.init(x)
    ended = Ended("rounds", steps.step, n)
    norms_at_start = _norms(algorithm.params(state))
    try:
        ended.diverged = _evaluate(watch, task, steps, algorithm.params(state), 0, 0, stop)
        started_s = perf_counter()
        while e.rounds == 0 or ended.rounds < e.rounds:
            if enough is not None and enough(watch.history.entries[-1]):
                break
            if ended.diverged is not None and e.record.on_divergence == "stop":
                ended.outcome = "diverged"
                break
            began_s = perf_counter()
            delta, lr = steps.train(algorithm.at(state), ended.rounds, stop)
            state = algorithm.learned(state, delta, lr)
            for k in range(algorithm.exchanges):
                state, message = algorithm.message(state, k, None)
                state = algorithm.update(state, k, mixing.heard(ended.rounds, k, message))
            ended.rounds += 1
            ended.gradients += n * e.task.local_steps * (not isinstance(steps.trainer, PureGossip))
            ended.payload_bytes_sent = mixing.payload_bytes
            found = _first_diverged(assembly, _norms(algorithm.params(state)), norms_at_start, ended.rounds)
            ended.rounds_seconds += perf_counter() - began_s
            is_late = 0 < e.stop_after_s <= perf_counter() - started_s
            ends = is_late or (found is not None and e.record.on_divergence == "stop")
            if watch.is_due(ended.rounds) or ends:
                params = algorithm.params(state)
                judged = _evaluate(watch, task, steps, params, ended.rounds, ended.payload_bytes_sent, stop)
                found = found if judged is None else earliest(found, judged, assembly.names)
            ended.diverged = ended.diverged or found
            if watch.wants_pace():
                watch.pace(ended.rounds, ended.rounds / e.rounds if e.rounds else None)
            if is_late:
                break
            if stop():
                raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        ended.outcome = "interrupted"
    except TrainingError as error:
        ended.outcome, ended.why, ended.details = "failed", str(error), error.details
    if ended.diverged is not None and ended.outcome == "finished":
        ended.outcome = "diverged"
    ended.history = watch.history.entries
    params = algorithm.params(state)
    ended.params = list(params.cpu().numpy())
    if watch.on_model is not None:
        for i, name in enumerate(assembly.names):
            watch.on_model(name, steps.trainer.tensors(params[i], steps.memory(i)))
    return ended


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


# ---- Figures


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return norms.cpu()


def _first_diverged(assembly: Assembly, norms: Tensor, at_start: Tensor, round: int) -> Divergence | None:
    diverged = which_diverged(norms.numpy(), at_start.numpy())
    return Divergence(round, assembly.names[int(diverged.argmax())]) if diverged.any() else None


def _evaluate(
    watch: Watch, task: Task, steps: _Steps, params: Tensor, round: int, payload_bytes: int, stop: Callable[[], bool]
) -> Divergence | None:
    test = task.test_rows(params.device)
    evaluations = [
        judge(steps.trainer, x, steps.memory(i), steps.shards[i], test, round, stop) for i, x in enumerate(params)
    ]
    rows = params.cpu().numpy()
    figures = {i: Figures(peer_score(evaluation), rows[i]) for i, evaluation in enumerate(evaluations)}
    return watch.evaluated(round, figures, payload_bytes)
