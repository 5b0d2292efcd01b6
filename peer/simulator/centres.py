"""The coordinators of the events engine: their tensors, and what each has saved in case it falls."""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.combine import is_finite
from peer.assembly import Assembly
from peer.assembly.coordination import centre_of, coordinator_of, parcels_of, weights_of
from peer.centre import Centre, Outcome, Pushed
from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import Applied, Apply, PeerId
from peer.task.task import Task


@dataclass(frozen=True)
class _Saved:
    present: Present
    tensors: dict[str, Tensor]


class Centres:
    """One centre for each coordinator."""

    def __init__(self, assembly: Assembly, task: Task) -> None:
        self.each: dict[PeerId, Centre] = {}
        self.parcels = parcels_of(assembly, task)
        self._assembly = assembly
        self._task = task
        self._ids = assembly.coordinator_ids
        self._weights = weights_of(assembly, task)
        self._every = assembly.experiment.checkpoint.every_rounds or 1
        self._diverged: dict[PeerId, bool] = {}
        self._saved: dict[PeerId, _Saved] = {}

    def begin_anew(self, me: PeerId) -> Coordinator:
        """Give a coordinator its tensors, from what it has saved or from the start, and the core that goes with it."""
        self.each[me] = centre = centre_of(self._assembly, self._task, me, torch.device("cpu"))
        saved = self._saved.get(me)
        if saved is None:
            return coordinator_of(self._assembly, self._weights, me, Present(self.parcels.give(centre.given())))
        centre.restore(saved.tensors)
        return coordinator_of(self._assembly, self._weights, me, saved.present)

    def apply(self, me: PeerId, apply: Apply) -> tuple[Applied, Outcome]:
        """Make the next version."""
        centre, place = self.each[me], me - self._ids.start
        pushes = [
            Pushed(t.weight, t.sender, self.parcels.pushed_to(place, t.payload), t.staleness) for t in apply.terms
        ]
        outcome = centre.apply(apply.version, pushes)
        given = self.parcels.give(centre.given())
        self._diverged[me] = centre.has_diverged() or not is_finite(given)
        return Applied(given, outcome.rejected), outcome

    def has_diverged(self, me: PeerId) -> bool:
        """Say whether a coordinator's parameters, as they are given, have left all bounds."""
        return self._diverged.get(me, False)

    def save(self, me: PeerId, core: Coordinator) -> None:
        """A version is there: what is saved of it outlives the coordinator's process."""
        if core.version % self._every == 0 or core.version == core.rounds:
            self._saved[me] = _Saved(core.present(), self.each[me].tensors())

    def params(self) -> Tensor:
        """Return all parameters, (d,), as they are now."""
        return torch.cat([self.each[me].params() for me in self._ids])

    def given_by_all(self, messages: tuple[Message, ...]) -> Tensor:
        return self.parcels.given_by_all(messages)
