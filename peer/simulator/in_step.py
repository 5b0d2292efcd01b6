"""What the rounds engine asks of the peers that it takes from round to round, and when they have left all bounds."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from peer.divergence import which_diverged
from peer.record import Divergence


class InStep(Protocol):
    """All peers of an experiment, gossiping, beside a coordinator, or in a ring."""

    gradients: int

    @property
    def payload_bytes(self) -> int:
        """How many bytes of payload all have sent."""
        ...

    def advance(self, round: int, stop: Callable[[], bool]) -> None:
        """Do one round. Raises Interrupted when `stop` says so, and TrainingError."""
        ...

    def params(self) -> Tensor:
        """Return the parameters that each peer stands for, (n, d)."""
        ...

    def diverged(self, round: int) -> Divergence | None:
        """Return who has left all bounds after this round, the first in node order."""
        ...


def norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of x, (n, d), in float64 on the CPU."""
    found: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return found.cpu()


def first_diverged(names: Sequence[str], x: Tensor, at_start: Tensor, round: int) -> Divergence | None:
    """Return whose row of x, (n, d), has left all bounds; `at_start` are the norms before round 0, (n,)."""
    diverged = which_diverged(norms(x).numpy(), at_start.numpy())
    return Divergence(round, names[int(diverged.argmax())]) if diverged.any() else None
