"""When a run has diverged: a figure is not finite, or has grown beyond all bounds."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

GROWTH = 1e8


def which_diverged(values: ArrayLike, at_start: ArrayLike) -> NDArray[np.bool_]:
    """Say of each norm, loss or consensus distance whether it has left the range that training keeps to.

    `at_start` are the values at round 0; a start that is itself not finite counts as 0.
    """
    values, at_start = np.asarray(values, dtype=np.float64), np.asarray(at_start, dtype=np.float64)
    largest = np.maximum(1.0, np.where(np.isfinite(at_start), at_start, 0.0))
    outside: NDArray[np.bool_] = ~np.isfinite(values) | (values / GROWTH > largest)
    return outside


def has_diverged(value: float, at_start: float) -> bool:
    """Say the same of one figure."""
    return bool(which_diverged(value, at_start))


def vector_has_diverged(x: Tensor, norm_at_start: float) -> bool:
    """Say the same of the Euclidean norm of a vector, (d,), in float64; what is far inside costs little to judge."""
    roughly = float(torch.linalg.vector_norm(x))
    if 2 * roughly < GROWTH:  # a sum in the vector's own precision is never wrong by so much
        return False
    return has_diverged(float(torch.linalg.vector_norm(x, dtype=torch.float64)), norm_at_start)
