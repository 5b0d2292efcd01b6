"""When a run has diverged: a figure is not finite, or has grown beyond all bounds."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
