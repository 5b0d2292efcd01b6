"""The jobs of a peer beside coordinators, and of a member of a ring: what they have on top of those of gossip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.combine import is_finite
from peer.daemon.jobs import Done, Jobs
from peer.daemon.packing import Form, pack, unpack
from peer.parcels import Parcels
from peer.pieces import Segments, added, assembled, divided
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Assemble,
    Assembled,
    Divide,
    Divided,
    Payload,
    PeerId,
    Reduce,
    Reduced,
    Shares,
    Trained,
)


@dataclass
class WorkerJobs(Jobs):
    """`given_forms` are those of what each coordinator gives. Where `judges`, this peer is judged by what it holds."""

    parcels: Parcels = field(kw_only=True)
    coordinators: Sequence[PeerId] = field(kw_only=True)
    given_forms: tuple[Form, ...] = field(kw_only=True)
    version: int = 0
    _trained: int = -1  # the round that was trained last

    def drop_unfinished(self) -> None:
        """What was trained counts; local steps that have not ended have changed nothing."""
        self.learner.settle()

    def train(self, round: int, stop: Callable[[], bool]) -> Done:
        """Do local steps; returns what each coordinator is to be pushed."""
        message = self.learner.train(round, stop)
        assert not isinstance(message, Shares)
        self._trained = round
        pushed = map(pack, self.parcels.push(message["u"]))
        return Done(Trained(round, Shares(None, dict(zip(self.coordinators, pushed, strict=True)))))

    def adopt(self, adopt: Adopt) -> Done:
        """Go on from what the coordinators gave; where copies are judged, judge the peer before and after."""
        assert adopt.payload is not None
        assert adopt.version is not None
        if self._trained == adopt.round:  # the last version has come before the push: that was never said
            self.learner.void()
        before, self.version = self.version, max(self.version, adopt.version)
        missed = [v for v in range(before + 1, adopt.version) if self.judges and self.is_due(v)]
        done = self.evaluate_as(missed) if missed else Done()
        given = self._given(adopt.payload)
        alert = "was given parameters that are not finite; it keeps its own"
        if is_finite({"x": given}):
            self.learner.take(given, adopt.version, is_answer=adopt.is_answer)
            alert = ""
        after = Done()
        if self.judges:
            is_due = adopt.version > before and self.is_due(adopt.version)
            after = self.evaluate(adopt.version) if is_due else Done()
            after = replace(after, diverged_round=self._diverged(adopt.version) or after.diverged_round)
        return Done(
            Adopted(adopt.round),
            done.judged + after.judged,
            after.diverged_round,
            done.evaluation_s + after.evaluation_s,
            alert,
            changed_state=True,
        )

    def _given(self, payloads: tuple[Payload, ...]) -> Tensor:
        device = self.learner.params().device
        messages = [unpack(p, form, device) for p, form in zip(payloads, self.given_forms, strict=True)]
        return self.parcels.given_by_all(messages)


@dataclass
class RingJobs(Jobs):
    """`segments` are the pieces of a ring all-reduce. In bytes a piece is its numbers."""

    segments: Segments = field(kw_only=True)

    def train(self, round: int, stop: Callable[[], bool]) -> Done:
        """Do local steps; returns the parameters that came of them."""
        message = self.learner.train(round, stop)
        assert not isinstance(message, Shares)
        return Done(Trained(round, message))

    def divide(self, divide: Divide) -> Done:
        message: Message = divide.payload
        pieces = divided(message["x"].detach().cpu(), divide.weight, self.segments)
        return Done(Divided(divide.round, tuple(tuple(pack({"x": p}) for p in segment) for segment in pieces)))

    def reduce(self, reduce: Reduce) -> Done:
        total = added(self._numbers(reduce.heard), self._numbers(reduce.own))
        return Done(Reduced(reduce.round, reduce.segment, reduce.piece, pack({"x": total})))

    def assemble(self, assemble: Assemble) -> Done:
        mean = assembled([[self._numbers(p) for p in segment] for segment in assemble.pieces], assemble.total)
        if not is_finite({"x": mean}):
            return Done(Assembled(assemble.round, is_applied=False))
        self.learner.take(mean.to(self.learner.params().device))
        return self.completed(assemble.round + 1, Assembled(assemble.round))

    def _numbers(self, payload: bytearray | memoryview) -> Tensor:
        return torch.frombuffer(payload, dtype=self.learner.params().dtype)
