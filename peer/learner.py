"""One peer's tensors: carries out what a core asks for, the same in a daemon and in the events engine.

The core decides when to train and what to mix; the learner holds the state of the algorithm, the memory of local
training and the shard, and does it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Message
from peer.algorithms.combine import HeardMessages, is_finite, screen
from peer.divergence import has_diverged
from peer.protocol.messages import PeerId
from peer.task.local import Memory, Score, Shard, Trainer, never


@dataclass(frozen=True)
class Evaluation:
    """One peer's figures after `round` rounds; `own` where it has test rows of its own beside the common ones.

    `neighbour_distance` is what one peer can know of the distance to the others: the mean of |x_i - x_j|^2 over the
    neighbours j that it heard last, by what both said before they mixed. None before it heard any.
    """

    round: int
    score: Score
    own: Score | None
    neighbour_distance: float | None = None


@dataclass(frozen=True)
class Said:
    """A message with the weight that its receiver gives it."""

    weight: float
    sender: PeerId
    message: Message


class Learner:
    """One peer's state on one device."""

    def __init__(
        self,
        me: PeerId,
        algorithm: Algorithm,
        trainer: Trainer,
        start: Tensor,
        shard: Shard | None,
        test: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.me = me
        self.algorithm = algorithm
        self.trainer = trainer
        self.shard = shard
        self.test = test
        self.gradients = 0
        self._state = algorithm.init(start)
        self._memory = trainer.memory()
        self._norm_at_start = self.norm()
        self._loss_at_start: float | None = None
        self._heard: HeardMessages | None = None
        self._settled = (self._state, 0)

    def train(self, round: int, stop: Callable[[], bool] = never) -> Message:
        """Do the local steps of a round; returns the first message of its exchange."""
        learned = self.trainer.train(self.algorithm.at(self._state), self._memory, self.shard, self.me, round, stop)
        self.gradients += learned.steps
        self._state = self.algorithm.learned(self._state, learned.delta, learned.lr)
        return self._message(0)

    def mix(self, exchange: int, said: Sequence[Said]) -> tuple[Message | None, tuple[PeerId, ...]]:
        """Update the state from what was said, the own message among it, in node order.

        Returns the next exchange's message, None after the last, and who sent what is not finite: that is left out,
        and its weight goes to the own message.
        """
        heard = HeardMessages(tuple((s.weight, s.message, s.sender == self.me) for s in said))
        rejected: tuple[PeerId, ...] = ()
        if not is_finite(heard.sum()):  # one look at the sum instead of one at each message
            heard, bad = screen(heard)
            rejected = tuple(said[i].sender for i in bad)
        self._state = self.algorithm.update(self._state, exchange, heard)
        self._heard = heard
        following = exchange + 1
        if following < self.algorithm.exchanges:
            return self._message(following), rejected
        self._settled = (self._state, self.gradients)
        return None, rejected

    def drop_unfinished(self) -> None:
        """Go back to the end of the last round: what was learned for the next one was never mixed."""
        self._state, self.gradients = self._settled

    def params(self) -> Tensor:
        """Return the parameters that the peer stands for, (d,)."""
        return self.algorithm.params(self._state)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole model by name, for a file."""
        return self.trainer.tensors(self.params(), self._memory)

    def norm(self) -> float:
        """Return the Euclidean norm of the parameters."""
        return parameter_norm(self.params())

    def has_diverged(self) -> bool:
        """Say whether the parameters are not finite or have grown beyond all bounds."""
        return has_diverged(self.norm(), self._norm_at_start)

    def evaluate(self, round: int, stop: Callable[[], bool] = never) -> Evaluation:
        """Return the figures after so many rounds."""
        evaluation = judge(self.trainer, self.params(), self._memory, self.shard, self.test, round, stop)
        if self._loss_at_start is None:
            self._loss_at_start = evaluation.score.loss
        return replace(evaluation, neighbour_distance=self.neighbour_distance())

    def neighbour_distance(self) -> float | None:
        """Return the mean squared distance to what the neighbours said last, None where none was heard."""
        if self._heard is None or len(self._heard.terms) < 2:
            return None
        edges = self._heard.edges()
        squares = [(edges.own[name] - theirs).double().square().sum(dim=1) for name, theirs in edges.theirs.items()]
        return float(torch.stack(squares).sum(dim=0).mean())

    def loss_has_diverged(self, evaluation: Evaluation) -> bool:
        """Say whether the loss is not finite or has grown beyond all bounds."""
        loss = evaluation.score.loss
        return loss is not None and has_diverged(loss, self._loss_at_start or 0.0)

    def _message(self, exchange: int) -> Message:
        self._state, message = self.algorithm.message(self._state, exchange, None)
        return message


def judge(
    trainer: Trainer,
    x: Tensor,
    memory: Memory,
    shard: Shard | None,
    test: tuple[Tensor, Tensor] | None,
    round: int,
    stop: Callable[[], bool] = never,
) -> Evaluation:
    """Return loss and accuracy of x, (d,), on the common test rows; without such rows on the peer's own.

    The peer's own are its own test rows, where it has none the rows that it trains on.
    """
    own = None if shard is None else shard.test
    rows = test or own or (shard.take(None) if shard is not None else None)
    score = trainer.evaluate(x, memory, rows, stop)
    both = test is not None and own is not None
    return Evaluation(round, score, trainer.evaluate(x, memory, own, stop) if both else None)


def parameter_norm(x: Tensor) -> float:
    """Return the Euclidean norm of a vector, (d,), computed in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def message_forms(algorithm: Algorithm, x: Tensor) -> tuple[Message, ...]:
    """Return a message of each exchange as it looks for parameters like x, (d,): names, shapes, dtypes."""
    state = algorithm.init(torch.zeros_like(x))
    forms = []
    for k in range(algorithm.exchanges):
        state, message = algorithm.message(state, k, None)
        forms.append(message)
        state = algorithm.update(state, k, HeardMessages(((1.0, message, True),)))
    return tuple(forms)
