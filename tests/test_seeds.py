"""Streams: the same for the same words, another one for any other words, whatever was drawn before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.seeds import stream, torch_seed

Words = tuple[int, str, tuple[int, ...]]

words: st.SearchStrategy[Words] = st.tuples(
    st.integers(0, 2**64 - 1),
    st.sampled_from(["batch", "partition", "dropout"]),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
)


def draw(of: Words) -> list[int]:
    seed, purpose, counters = of
    return stream(seed, purpose, *counters).integers(2**63, size=4).tolist()


@given(one=words, other=words)
def test_a_stream_is_a_function_of_its_words(one: Words, other: Words) -> None:
    first = draw(one)
    assert (draw(other) == first) == (one == other)
    assert draw(one) == first


@given(one=words, other=words)
def test_so_is_a_seed_for_torch(one: Words, other: Words) -> None:
    seeds = [torch_seed(seed, purpose, *counters) for seed, purpose, counters in (one, other)]
    assert (seeds[0] == seeds[1]) == (one == other)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "batch", ()), (0, "batch", (0,))),
        ((0, "batch", (1,)), (0, "batch", (1, 0))),
        ((1, "batch", (23,)), (12, "batch", (3,))),
        ((0, "batch", (1, 2)), (0, "batch", (2, 1))),
        ((0, "batch", (12,)), (0, "batch", (1, 2))),
        ((0, "batch", (0,)), (2**32, "batch", (0,))),
    ],
)
def test_words_that_look_alike(one: Words, other: Words) -> None:
    assert draw(one) != draw(other)


def test_the_numbers_are_those_of_every_version() -> None:
    """A run is repeated from its seed alone: whoever changes these numbers changes every recorded run."""
    assert draw((7, "batch", (3, 1))) == [
        3880115561587847007,
        5575705722816748079,
        4652885317184804490,
        4651744195084771424,
    ]
    assert torch_seed(7, "model") == 5044889838439982939


def test_numpy_integers_are_integers() -> None:
    assert draw((np.int64(7), "batch", (np.int32(3),))) == draw((7, "batch", (3,)))  # type: ignore[arg-type]


def test_streams_of_neighbouring_counters_are_not_correlated() -> None:
    """The correlation of n independent pairs has standard deviation 1 / sqrt(n)."""
    rows = np.stack([stream(0, "noise", peer).standard_normal(4000) for peer in range(8)])
    correlation = np.corrcoef(rows) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)
