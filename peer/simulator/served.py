"""Rounds beside a coordinator, and in a ring, for all peers at once: what the cores and the links come to when all
wait for each other and nothing takes any time."""

from collections.abc import Callable

import torch
from torch import Tensor

from peer.algorithms.algorithm import bytes_of
from peer.algorithms.combine import is_finite
from peer.assembly import Assembly
from peer.assembly.coordination import (
    beside_of,
    centre_of,
    chosen_of,
    judges_copies,
    parcels_of,
    piece_elements,
    weights_of,
)
from peer.centre import Pushed
from peer.errors import TrainingError
from peer.pieces import assembled, divided
from peer.protocol.ring import cut
from peer.record import Divergence
from peer.simulator.in_step import first_diverged, norms
from peer.simulator.steps import Steps
from peer.task.task import Task


class Served:
    """Peers that push to coordinators what they have learned from the parameters which these gave them.

    `tell` is told a peer's name and what a person should know of it.
    """

    def __init__(
        self, assembly: Assembly, task: Task, steps: Steps, x: Tensor, tell: Callable[[str, str], None]
    ) -> None:
        self.gradients = 0
        self.payload_bytes = 0
        self._tell = tell
        self._assembly = assembly
        self._steps = steps
        self._peers = range(len(assembly.names))
        self._rounds = assembly.experiment.rounds
        self._parcels = parcels_of(assembly, task)
        self._centres = [centre_of(assembly, task, me, x.device) for me in assembly.coordinator_ids]
        self._chosen = chosen_of(assembly.experiment, len(self._peers))
        self._weights = weights_of(assembly, task) or dict.fromkeys(self._peers, 1.0)
        self._pushes = dict.fromkeys(self._peers, 0)  # how many each has made
        self._named: set[int] = set()
        self._given = self._parcels.given_by_all(self._give(self._takers(0)))

    @property
    def is_one_model(self) -> bool:
        """Whether all peers stand for the coordinators' parameters."""
        return not judges_copies(self._assembly)

    def centre(self) -> Tensor:
        """Return the coordinators' parameters, (d,)."""
        return torch.cat([centre.params() for centre in self._centres])

    def params(self) -> Tensor:
        return self.centre().expand(len(self._peers), -1)

    def diverged(self, round: int) -> Divergence | None:
        named = zip(self._assembly.coordinators, self._centres, strict=True)
        found = next((name for name, centre in named if centre.has_diverged()), None)
        if found is None and not is_finite({"x": self._given}):  # as it travels
            found = self._assembly.coordinators[0]
        return None if found is None else Divergence(round, found)

    def held(self) -> Tensor:
        """Return the parameters that each peer has, (n, d): as they travelled."""
        return self._given.expand(len(self._peers), -1)

    def advance(self, round: int, stop: Callable[[], bool]) -> None:
        peers = sorted(self._chosen(round)) if self._chosen is not None else list(self._peers)
        x = self._begins_at(peers)
        delta = self._steps.train_some(x, peers, [self._pushes[peer] for peer in peers], round, stop)
        self.gradients += len(peers) * self._steps.per_round
        self._serve(round, peers, self._learned(delta))
        self._take(self._parcels.given_by_all(self._give(self._takers(round + 1))))

    # ---- What differs with elastic averaging

    def _begins_at(self, peers: list[int]) -> Tensor:
        """Return where the local steps of these peers begin, (k, d)."""
        return self._given.expand(len(peers), -1)

    def _learned(self, delta: Tensor) -> Tensor:
        """Return what is pushed, (k, d), after local steps that found delta."""
        return -delta

    def _take(self, given: Tensor) -> None:
        """The next version has come."""
        self._given = given

    # ---- Inside

    def _takers(self, version: int) -> int:
        """Return how many are given a version: who makes the next one, and all where it is the last."""
        everyone = self._chosen is None or version == self._rounds
        return len(self._peers) if everyone or self._chosen is None else len(self._chosen(version))

    def _give(self, takers: int) -> list[dict[str, Tensor]]:
        """Return what each coordinator gives to so many peers."""
        parts = [self._parcels.give(centre.given()) for centre in self._centres]
        self.payload_bytes += takers * sum(map(bytes_of, parts))
        return parts

    def _serve(self, version: int, peers: list[int], pushed: Tensor) -> None:
        """Have every coordinator make its next version from what these peers pushed, (k, d)."""
        messages = [self._parcels.push(u) for u in pushed]
        self.payload_bytes += sum(bytes_of(part) for parts in messages for part in parts)
        total = sum(self._weights[peer] for peer in peers)
        for place, centre in enumerate(self._centres):
            pushes = [
                Pushed(self._weights[peer] / total, peer, self._parcels.pushed_to(place, parts[place]))
                for peer, parts in zip(peers, messages, strict=True)
            ]
            for peer in centre.apply(version, pushes).rejected:
                if peer not in self._named:
                    self._named.add(peer)
                    name = self._assembly.names[peer]
                    self._tell(name, f"pushed numbers that are not finite for version {version}; they were not applied")
        for peer in peers:
            self._pushes[peer] += 1


class Elastic(Served):
    """EASGD: peers keep parameters of their own, and they and the centre pull at each other."""

    def __init__(
        self, assembly: Assembly, task: Task, steps: Steps, x: Tensor, tell: Callable[[str, str], None]
    ) -> None:
        super().__init__(assembly, task, steps, x, tell)
        self._worker = beside_of(assembly.experiment, len(self._peers), task.layout)
        self._state = self._worker.init(x)
        self._at_start = norms(x)

    def params(self) -> Tensor:
        return self._worker.params(self._state)

    def diverged(self, round: int) -> Divergence | None:
        return first_diverged(self._assembly.names, self.params(), self._at_start, round) or super().diverged(round)

    def _begins_at(self, peers: list[int]) -> Tensor:
        return self._worker.at(self._state)

    def _learned(self, delta: Tensor) -> Tensor:
        self._state = self._worker.learned(self._state, delta, 0.0)
        return self._worker.message(self._state, 0, None)[1]["u"]

    def held(self) -> Tensor:
        return self.params()

    def _take(self, given: Tensor) -> None:
        self._state = self._worker.adopted(self._state, given)


class Ringed:
    """Peers that go on from the mean of what all have trained, summed along a ring."""

    def __init__(self, assembly: Assembly, task: Task, steps: Steps, x: Tensor) -> None:
        n, d = len(assembly.names), task.layout.size
        self.gradients = 0
        self.payload_bytes = 0
        self._names = assembly.names
        self._steps = steps
        self._x = x
        self._at_start = norms(x)
        self._segments = cut(d, n, piece_elements(task.layout))
        weights = weights_of(assembly, task)
        self._weights = [1.0] * n if weights is None else [weights[peer] for peer in range(n)]
        self._round_bytes = 2 * (n - 1) * d * x.element_size()

    def params(self) -> Tensor:
        return self._x

    def diverged(self, round: int) -> Divergence | None:
        return first_diverged(self._names, self._x, self._at_start, round)

    def advance(self, round: int, stop: Callable[[], bool]) -> None:
        n = len(self._names)
        delta, _ = self._steps.train(self._x, round, stop)
        parts = [divided(x, w, self._segments) for x, w in zip(self._x + delta, self._weights, strict=True)]
        sums = []
        for s, segment in enumerate(self._segments):
            in_order = [parts[(s + k) % n][s] for k in range(n)]
            sums.append([_sum([part[piece] for part in in_order]) for piece in range(len(segment))])
        mean = assembled(sums, sum(self._weights))
        if not is_finite({"x": mean}):
            raise TrainingError(f"the sum of round {round} is not finite; it was not applied")
        self._x = mean.expand(n, -1).clone()
        self.payload_bytes += self._round_bytes
        self.gradients += n * self._steps.per_round


def _sum(parts: list[Tensor]) -> Tensor:
    """Return the sum in ring order: from the member with which the segment begins."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
