"""A data set on which thousands of full-batch rounds take seconds: 600 handwritten digits of 7 x 7 pixels."""

from pathlib import Path

import torch
from torch import Tensor

from peer.task.data import load_data

ROWS_PER_DIGIT = 60


def rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x (600, 49), in [0, 1], and y (600,): the first rows of each digit of mnist5k, 4 x 4 pixels in one."""
    digits = load_data("mnist5k", folder=Path(), dtype=dtype)
    first = torch.cat([torch.nonzero(digits.y == digit)[:ROWS_PER_DIGIT, 0] for digit in range(10)])
    return torch.nn.functional.avg_pool2d(digits.x[first], 4).flatten(1), digits.y[first]
