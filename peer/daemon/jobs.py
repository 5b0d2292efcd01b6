"""What a daemon's worker does with the learner, each as one job: between events and bytes on one side, tensors on the
other."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.centre import Update
from peer.daemon.packing import Form, form_of, pack, unpack
from peer.learner import Evaluation, Learner, Said
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Copied,
    Copy,
    Event,
    Forget,
    Learn,
    Learned,
    Mix,
    Mixed,
    Shares,
    Trained,
)


@dataclass(frozen=True)
class Judged:
    """What parameters, (d,), were worth after a round: to the peer that holds them, or where a coordinator has them,
    to every peer, in node order; to nobody where others judge them."""

    round: int
    evaluations: tuple[Evaluation, ...]
    params: Tensor


@dataclass(frozen=True)
class Done:
    """A job is done: what the core is to be told, and what came along. `is_saved`: that job was to save the state."""

    event: Event | None = None
    judged: tuple[Judged, ...] = ()
    diverged_round: int | None = None
    evaluation_s: float = 0.0
    alert: str = ""
    changed_state: bool = False
    updates: tuple[Update, ...] = ()
    is_saved: bool = False


class NodeJobs(Protocol):
    """What a node asks of any jobs, those of a peer or of a coordinator."""

    @property
    def judges(self) -> bool:
        """Whether parameters are judged here at all."""
        ...

    @property
    def gradients(self) -> int: ...

    @property
    def step(self) -> str: ...

    def evaluate(self, round: int, stop: Callable[[], bool] = ...) -> Done: ...

    def is_due(self, round: int) -> bool: ...

    def drop_unfinished(self) -> None: ...

    def params(self) -> Tensor:
        """Return the parameters that this node stands for."""
        ...

    def tensors(self) -> dict[str, Tensor] | None:
        """Return the whole model by name, for a file; None where there is none here."""
        ...


@dataclass
class Jobs:
    """The jobs of one peer. `due(round)` says whether it is evaluated when it has mixed that round.

    `own_forms` are those of the own message of each exchange, `wire_forms` those of the others'.
    """

    learner: Learner
    own_forms: tuple[Form, ...]
    wire_forms: tuple[Form, ...]
    due: Callable[[int], bool]
    judges: bool = True

    @property
    def gradients(self) -> int:
        return self.learner.gradients

    @property
    def step(self) -> str:
        return self.learner.trainer.step

    def is_due(self, round: int) -> bool:
        return self.due(round)

    def drop_unfinished(self) -> None:
        self.learner.drop_unfinished()

    def params(self) -> Tensor:
        return self.learner.params()

    def tensors(self) -> dict[str, Tensor]:
        return self.learner.tensors()

    def train(self, round: int, stop: Callable[[], bool]) -> Done:
        """Do the local steps of a round and take in what they found."""
        return Done(Trained(round, packed(self.learner.train(round, stop))), changed_state=True)

    def practise(self, round: int, stop: Callable[[], bool]) -> Done:
        """Do the local steps that have begun, and leave the state alone."""
        self.learner.practise(stop)
        return Done(Trained(round, None))

    def learn(self, learn: Learn) -> Done:
        if learn.round is None:
            return Done(Learned(packed(self.learner.say())))
        payload = packed(self.learner.learn())
        self.learner.settle()
        return Done(Learned(payload), diverged_round=self._diverged(learn.round + 1), changed_state=True)

    def mix(self, mix: Mix) -> Done:
        own, wire = self.own_forms[mix.exchange], self.wire_forms[mix.exchange]
        device = self.learner.params().device
        said = [
            Said(t.weight, t.sender, unpack(t.payload, own if t.sender == mix.me else wire, device)) for t in mix.terms
        ]
        outcome = self.learner.mix(mix.exchange, said)
        payload = None if outcome.message is None else packed(outcome.message)
        mixed = Mixed(mix.round, mix.exchange, payload, outcome.rejected, outcome.far)
        return Done(mixed) if payload is not None else self.completed(mix.round + 1, mixed)

    def completed(self, round: int, event: Event) -> Done:
        """A round is complete, as this event says: has the peer diverged? Where it is due, it is judged."""
        diverged_round = self._diverged(round)
        if not self.is_due(round):
            return Done(event, diverged_round=diverged_round, changed_state=True)
        done = self.evaluate(round)
        return replace(done, event=event, diverged_round=diverged_round or done.diverged_round, changed_state=True)

    def mix_with_one(self, mix: Mix) -> Done:
        """Mix, and say what the peer would say then."""
        done = self.mix(mix)
        assert isinstance(done.event, Mixed)
        return replace(done, event=replace(done.event, payload=packed(self.learner.say())))

    def copy(self, copy: Copy) -> Done:
        return Done(Copied(copy.to, pack(self.learner.copy())))

    def adopt(self, adopt: Adopt) -> Done:
        copied = None
        if adopt.payload is not None:
            params = self.learner.params()
            copied = unpack(adopt.payload, self.model_form, params.device)
        is_taken = self.learner.adopt(copied)
        alert = "" if is_taken else "was sent parameters that are not finite; it keeps its own"
        return Done(Adopted(adopt.round), alert=alert, changed_state=True)

    def forget(self, forget: Forget) -> Done:
        self.learner.forget(forget.peer)
        return Done()

    def evaluate(self, round: int, stop: Callable[[], bool] = lambda: False) -> Done:
        """Judge the parameters as they are; `round` is what the figures are called after."""
        return self.evaluate_as([round], stop)

    def evaluate_as(self, rounds: Iterable[int], stop: Callable[[], bool] = lambda: False) -> Done:
        """Judge the parameters as they are, for all these rounds; there is one at least."""
        first, *others = rounds
        began_s = monotonic()
        evaluation = self.learner.evaluate(first, stop)
        params = self.learner.params().detach().cpu().clone()
        diverged_round = first if self.learner.loss_has_diverged(evaluation) else None
        took_s = 0.0 if first == 0 else monotonic() - began_s  # the rounds begin after round 0
        judged = [Judged(r, (replace(evaluation, round=r),), params) for r in (first, *others)]
        return Done(None, tuple(judged), diverged_round, took_s)

    @property
    def model_form(self) -> Form:
        """The form of parameters that a peer hands to one that was away."""
        return form_of(self.learner.copy())

    def _diverged(self, round: int) -> int | None:
        return round if self.learner.has_diverged() else None


def packed(message: Message | Shares) -> memoryview | Shares:
    """Return the bytes of a message; where it differs from listener to listener, those of each."""
    if isinstance(message, Shares):
        return Shares(pack(message.own), {peer: pack(theirs) for peer, theirs in message.to.items()})
    return pack(message)
