"""One peer's tensors: carries out what a core asks for, the same in a daemon and in the events engine.

The core decides when to train and what to mix; the learner holds the state of the algorithm, the memory of local
training and the shard, and does it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import cast

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Message
from peer.algorithms.beside import Beside
from peer.algorithms.combine import HeardMessages, is_finite, leave_out, screen
from peer.algorithms.counters import Given, Taken, counter_form
from peer.divergence import has_diverged, vector_has_diverged
from peer.protocol.messages import Neighbourhood, PeerId, Shares
from peer.task.local import Learned, Memory, Score, Shard, Trainer, never


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
    """A message with the weight that its receiver gives it; what others said may be a counter, see `wire_forms`."""

    weight: float
    sender: PeerId
    message: Message


@dataclass(frozen=True)
class Outcome:
    """What came of mixing: the next exchange's message, None after the last; and who was left out.

    `rejected` sent what is not finite, `far` stands beyond the threshold of the metric "model".
    """

    message: Message | Shares | None
    rejected: tuple[PeerId, ...] = ()
    far: tuple[PeerId, ...] = ()


class Learner:
    """One peer's state on one device.

    `around(round)` is needed where messages differ from listener to listener. `threshold` is that of the metric
    "model": how far apart the parameters of two peers may be for their messages to be mixed.

    `lr_round` is the round whose learning rate local steps have, where a coordinator counts; None: the peer's own.
    """

    def __init__(
        self,
        me: PeerId,
        algorithm: Algorithm,
        trainer: Trainer,
        start: Tensor,
        shard: Shard | None,
        test: tuple[Tensor, Tensor] | None,
        around: Callable[[int], Neighbourhood] | None = None,
        threshold: float | None = None,
    ) -> None:
        self.me = me
        self.algorithm = algorithm
        self.trainer = trainer
        self.shard = shard
        self.test = test
        self.gradients = 0
        self.lr_round: int | None = None
        self._around = around
        self._threshold = threshold
        self._round = 0
        self._state = algorithm.init(start)
        self._memory = trainer.memory()
        self._kept_before = self._memory.buffers
        self._norm_at_start = self.norm()
        self._loss_at_start: float | None = None
        self._heard: HeardMessages | None = None
        self._settled = (self._state, 0)
        self._begun: tuple[int, Tensor] | None = None
        self._learned: Learned | None = None
        self._counts = algorithm.absent == "count"
        self._given, self._taken = Given(), Taken()

    def train(self, round: int, stop: Callable[[], bool] = never) -> Message | Shares:
        """Do the local steps of a round; returns the first message of its exchange."""
        self.begin(round)
        self.practise(stop)
        return self.learn()

    def begin(self, round: int) -> None:
        """Take note of where the local steps of a round start: at the state as it is now."""
        self._kept_before = self._memory.buffers
        self._begun = round, self.algorithm.at(self._state)

    def practise(self, stop: Callable[[], bool] = never) -> None:
        """Do the local steps that have begun. Leaves the state alone: it may be mixed in another thread meanwhile."""
        assert self._begun is not None
        round, x = self._begun
        self.practised(self.trainer.train(x, self._memory, self.shard, self.me, round, stop, self.lr_round))

    @property
    def begun(self) -> tuple[int, Tensor] | None:
        """The round and the parameters, (d,), of local steps that have begun and are not done; None without such."""
        return self._begun if self._learned is None else None

    def practised(self, learned: Learned) -> None:
        """Take note of local steps that have begun and were done elsewhere: with those of other peers, say."""
        self._learned = learned

    def learn(self) -> Message | Shares:
        """Take what was practised into the state as it is now; returns the first message of the round's exchange."""
        assert self._begun is not None
        assert self._learned is not None
        self._round = self._begun[0]
        self.gradients += self._learned.steps
        self._state = self.algorithm.learned(self._state, self._learned.delta, self._learned.lr)
        self._begun = self._learned = None
        return self._message(0)

    def say(self) -> Message | Shares:
        """Return what the peer would say as it is now."""
        return self._message(0)

    def settle(self) -> None:
        """Count what has been learned and mixed so far as done: `drop_unfinished` comes back to here."""
        self._settled = (self._state, self.gradients)

    def copy(self) -> Message:
        """Return the parameters that the peer stands for, for a peer that was away."""
        return {"x": self.params()}

    def adopt(self, copied: Message | None) -> bool:
        """Start anew from another peer's parameters, or for None from the own ones at the end of the last round.

        Returns whether it did: parameters that are not finite are not taken.
        """
        self.drop_unfinished()
        self._begun = self._learned = None
        if copied is None:
            return True
        if not is_finite(copied):
            return False
        self._state = self.algorithm.init(copied["x"])
        self._given, self._taken = Given(), Taken()
        self.settle()
        return True

    def take(self, given: Tensor, version: int | None = None, *, is_answer: bool = True) -> None:
        """Go on from parameters, (d,), that coordinators gave as their `version`, or that a ring came to.

        What was learned and said before counts, unless that has come to nothing: not `is_answer`. Local steps that have
        begun do not.
        """
        if not is_answer:
            self._state = self.algorithm.init(self.params())
            self._memory.buffers = self._kept_before
        self.settle()
        self._begun = self._learned = None
        beside = cast(Beside, self.algorithm)  # nobody else is given anything
        self._state = beside.adopted(self._state, given)
        self.lr_round = version
        self.settle()

    def void(self) -> None:
        """The last local steps were never said: it is as if they had not been, but for the momentum."""
        self.drop_unfinished()
        self._begun = self._learned = None
        self._memory.buffers = self._kept_before

    def forget(self, peer: PeerId) -> None:
        """Count anew what is given to a neighbour and taken from it."""
        self._given.forget(peer)
        self._taken.forget(peer)

    def mix(self, exchange: int, said: Sequence[Said]) -> Outcome:
        """Update the state from what was said, the own message among it, in node order.

        What is not finite, and what is too far, is left out, and its weight goes to the own message.
        """
        heard = self._heard_of(said)
        rejected: tuple[PeerId, ...] = ()
        if not is_finite(heard.sum()):  # one look at the sum instead of one at each message
            heard, bad = screen(heard, keeps_sum=not self._counts)
            rejected = tuple(said[i].sender for i in bad)
            said = [item for i, item in enumerate(said) if i not in bad]
        away = self._too_far(heard, exchange)
        far = tuple(said[i].sender for i in away)
        self._state = self.algorithm.update(self._state, exchange, leave_out(heard, away))
        following = exchange + 1
        if following < self.algorithm.exchanges:
            return Outcome(self._message(following), rejected, far)
        self._heard = heard
        self.settle()
        return Outcome(None, rejected, far)

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
        return vector_has_diverged(self.params(), self._norm_at_start)

    def evaluate(self, round: int, stop: Callable[[], bool] = never) -> Evaluation:
        """Return the figures after so many rounds."""
        evaluation = judge(self.trainer, self.params(), self._memory, self.shard, self.test, round, stop)
        if self._loss_at_start is None:
            self._loss_at_start = evaluation.score.loss
        return replace(evaluation, neighbour_distance=self.neighbour_distance())

    def neighbour_distance(self) -> float | None:
        """Return the mean squared distance to what the neighbours said last, None where none was heard."""
        if self._heard is None:
            return None
        squares = [d * d for d in self._distances(self._heard, self.algorithm.exchanges - 1) if d is not None]
        return fsum(squares) / len(squares) if squares else None

    def loss_has_diverged(self, evaluation: Evaluation) -> bool:
        """Say whether the loss is not finite or has grown beyond all bounds."""
        loss = evaluation.score.loss
        return loss is not None and has_diverged(loss, self._loss_at_start or 0.0)

    def _message(self, exchange: int) -> Message | Shares:
        self._state, message = self.algorithm.message(self._state, exchange, None)
        if not self._counts:
            return message
        assert self._around is not None
        listeners = self._around(self._round).listeners
        return Shares(message, {p: self._given.give(p, share, message) for p, share in listeners.items()})

    def _heard_of(self, said: Sequence[Said]) -> HeardMessages:
        own = next(s.message for s in said if s.sender == self.me)
        taken = [
            self._taken.take(s.sender, s.message, own) if self._counts and s.sender != self.me else s.message
            for s in said
        ]
        return HeardMessages(tuple((s.weight, t, s.sender == self.me) for s, t in zip(said, taken, strict=True)))

    def _too_far(self, heard: HeardMessages, exchange: int) -> list[int]:
        """Return the indices of the terms beyond the threshold, by what both sides say in this exchange."""
        if self._threshold is None:
            return []
        return [i for i, d in enumerate(self._distances(heard, exchange)) if d is not None and d > self._threshold]

    def _distances(self, heard: HeardMessages, exchange: int) -> list[float | None]:
        """Return how far each term's parameters are from the own ones; None for the own, and where they are unsaid."""
        said = [self.algorithm.parameters_in(message, exchange) for _, message, _ in heard.terms]
        here = next(x for x, (_, _, own) in zip(said, heard.terms, strict=True) if own)
        return [
            None if own or x is None or here is None else parameter_norm(x - here)
            for x, (_, _, own) in zip(said, heard.terms, strict=True)
        ]


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


def wire_forms(algorithm: Algorithm, x: Tensor) -> tuple[Message, ...]:
    """Return a message of each exchange as others get it."""
    forms = message_forms(algorithm, x)
    return tuple(map(counter_form, forms)) if algorithm.absent == "count" else forms
