"""When a figure has left all bounds: not finite, or 1e8 times the greater of 1 and its start."""

from math import inf, nan

import pytest

from peer.divergence import has_diverged, which_diverged


@pytest.mark.parametrize(
    ("value", "at_start", "expected"),
    [
        (0.0, 0.0, False),
        (1e8, 0.0, False),
        (1.0000001e8, 0.0, True),
        (1.0000001e8, 2.0, False),
        (2.0000001e8, 2.0, True),
        (9e7, 1e-9, False),
        (inf, inf, True),
        (nan, 1.0, True),
        (1.0, nan, False),
        (1e9, inf, True),
        (-5.0, 1.0, False),
    ],
)
def test_the_bound(value: float, at_start: float, expected: bool) -> None:
    assert has_diverged(value, at_start) is expected


def test_many_at_once() -> None:
    assert which_diverged([1.0, nan, 3e8], [1.0, 1.0, 2.0]).tolist() == [False, True, True]
