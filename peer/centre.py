"""One coordinator's tensors: carries out `Apply`, the same in a daemon and in both engines of the simulator.

The core decides what is applied when; the centre holds the coordinator's part of the parameters, scales what was
pushed by its staleness, sums it, and has the optimiser take a step. Where it is sharded, each coordinator has a centre
of its own.

    combined = sum_i p_i s(tau_i) u_i       x <- step(x, combined)

Running statistics of a model are averaged apart, with rate 1 and s(tau) = 1 / (1 + tau): whatever the optimiser, a
variance must stay one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import fsum, inf, isfinite

import torch
from torch import Tensor

from peer.algorithms.algorithm import State
from peer.algorithms.combine import is_finite, weighted_sum
from peer.algorithms.server import Optimiser, Sgd, Staleness, staleness_distance, staleness_scale
from peer.divergence import vector_has_diverged
from peer.protocol.messages import PeerId

KEPT_BYTES = 256 * 1024 * 1024
"""Of how many bytes of earlier versions the distance to the present one is measured; of one version in any case."""

KEPT_VERSIONS = 1024
"""And of so many versions at most."""


@dataclass(frozen=True)
class Pushed:
    """What one worker pushed, decoded: it points uphill. `staleness` is how many versions it is behind."""

    weight: float
    sender: PeerId
    u: Tensor
    staleness: int = 0


@dataclass(frozen=True)
class Update:
    """One push that was applied: of whom, how many versions it was behind, and how far the parameters had gone since.

    `distance` is None where that version is not kept any more, and where it is not finite.
    """

    sender: PeerId
    staleness: int
    distance: float | None


@dataclass(frozen=True)
class Outcome:
    """What came of an update. `rejected` pushed what is not finite, and nothing of it was applied."""

    updates: tuple[Update, ...]
    rejected: tuple[PeerId, ...]


@dataclass
class Centre:
    """The state of one coordinator.

    `start` are its parameters before the first version, (m,), of which the first `trainable` are parameters and the
    rest statistics. `factor(version)` multiplies the optimiser's learning rate. `is_elastic`: workers push parameters,
    and each pulls the centre towards it, statistics and all. `workers` is how many there are; `measures`: how far the
    parameters have gone since a push was made from them is wanted.
    """

    optimiser: Optimiser
    start: Tensor
    trainable: int
    staleness: Staleness = "constant"
    factor: Callable[[int], float] = lambda _: 1.0
    is_elastic: bool = False
    workers: int = 1
    measures: bool = True
    state: State = field(init=False)
    statistics: Tensor = field(init=False)
    _earlier: dict[int, Tensor] = field(default_factory=dict)  # parameters by version, for distances
    _refused: set[PeerId] = field(default_factory=set)  # whose pushes were not finite since one was
    _norm_at_start: float = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.optimiser.init(self.start[: self.trainable].clone())
        self.statistics = self.start[self.trainable :].clone()
        self._norm_at_start = self.norm()

    def params(self) -> Tensor:
        """Return the parameters, (m,)."""
        return self._whole(self.optimiser.params(self.state))

    def given(self) -> Tensor:
        """Return what workers are given, (m,)."""
        return self._whole(self.optimiser.given(self.state))

    def apply(self, version: int, pushes: Sequence[Pushed]) -> Outcome:
        """Make the version after this one from what was pushed, in its order; what is not finite is left out.

        The weights of those that are left sum to what all did.
        """
        now = self.params()
        kept, sums = self._summed(pushes)
        updates = tuple(Update(p.sender, p.staleness, self._distance(now, version, p.staleness)) for p in kept)
        if kept:
            self._step(version, *sums)
        self._keep(version, now)
        there = {id(push) for push in kept}
        rejected = tuple(push.sender for push in pushes if id(push) not in there)
        self._refused = set() if kept else self._refused | set(rejected)
        return Outcome(updates, rejected)

    def norm(self) -> float:
        """Return the Euclidean norm of the parameters, in float64."""
        return float(torch.linalg.vector_norm(self.params(), dtype=torch.float64))

    def has_diverged(self) -> bool:
        """Say whether the parameters are not finite or have grown beyond all bounds, or nobody makes anything of them
        that is finite."""
        return len(self._refused) >= self.workers or vector_has_diverged(self.params(), self._norm_at_start)

    # ---- Saved and begun again

    def tensors(self) -> dict[str, Tensor]:
        """Return all that has to be saved; the tensors never change."""
        return {f"optimiser.{name}": t for name, t in self.state.items()} | {"statistics": self.statistics}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what was saved. Raises ValueError for the state of another optimiser, or of other sizes."""
        own = self.tensors()
        if {n: (t.shape, t.dtype) for n, t in own.items()} != {n: (t.shape, t.dtype) for n, t in tensors.items()}:
            raise ValueError("the saved state is not one of this model and this optimiser")
        device = self.start.device
        self.state = {
            name.removeprefix("optimiser."): t if own[name].device.type == "cpu" else t.to(device)
            for name, t in tensors.items()
            if name != "statistics"
        }
        self.statistics = tensors["statistics"].to(device)
        self._earlier.clear()

    # ---- Inside

    def _summed(self, pushes: Sequence[Pushed]) -> tuple[Sequence[Pushed], tuple[Tensor, Tensor]]:
        """Return what can be used of the pushes, and its weighted sums, of parameters and of statistics."""
        sums = self._sums(pushes, 1.0)
        if all(is_finite({"u": part}) for part in sums):  # one look at the sum instead of one at each push
            return pushes, sums
        kept = [push for push in pushes if is_finite({"u": push.u})]
        if not kept or len(kept) == len(pushes):  # each is, and the sum is not: then it has diverged
            return kept, sums
        return kept, self._sums(kept, fsum(p.weight for p in pushes) / fsum(p.weight for p in kept))

    def _sums(self, pushes: Sequence[Pushed], share: float) -> tuple[Tensor, Tensor]:
        cut = self.trainable
        if self.is_elastic:
            x = self.optimiser.params(self.state)
            return _sum([(1.0, x - push.u) for push in pushes], x), self.statistics
        by_rule = [p.weight * share * staleness_scale(self.staleness, p.staleness) for p in pushes]
        g = _sum([(weight, p.u[:cut]) for weight, p in zip(by_rule, pushes, strict=True)], self.start[:cut])
        by_age = [p.weight * share * staleness_scale("inverse", p.staleness) for p in pushes]
        apart = [(weight, p.u[cut:]) for weight, p in zip(by_age, pushes, strict=True)]
        return g, _sum(apart, self.statistics) if len(self.statistics) else self.statistics

    def _step(self, version: int, g: Tensor, apart: Tensor) -> None:
        self.state = self.optimiser.step(self.state, g, self.factor(version))
        if len(self.statistics) and not self.is_elastic:
            sgd = Sgd(1.0)
            self.statistics = sgd.params(sgd.step(sgd.init(self.statistics), apart))

    def _distance(self, now: Tensor, version: int, staleness: int) -> float | None:
        """Return how far the parameters have gone from those of so many versions before."""
        if not staleness:
            return 0.0
        earlier = self._earlier.get(version - staleness)
        distance = inf if earlier is None else float(staleness_distance(now, earlier))
        return distance if isfinite(distance) else None

    def _keep(self, version: int, now: Tensor) -> None:
        if not self.measures:
            return
        self._earlier[version] = now
        most = min(KEPT_VERSIONS, max(1, KEPT_BYTES // max(1, now.numel() * now.element_size())))
        while len(self._earlier) > most:
            del self._earlier[min(self._earlier)]

    def _whole(self, parameters: Tensor) -> Tensor:
        return torch.cat([parameters, self.statistics]) if len(self.statistics) else parameters


def _sum(terms: Sequence[tuple[float, Tensor]], like: Tensor) -> Tensor:
    """Return the weighted sum, zeros like the given ones where there is nothing to sum."""
    return weighted_sum((w, {"u": u}) for w, u in terms)["u"] if terms else torch.zeros_like(like)
