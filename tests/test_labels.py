"""Labels and targets: converted where nothing is lost, else refused in words that name the array."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.errors import ConfigError
from peer.task.labels import as_labels, as_targets


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    kind=st.sampled_from([torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64]),
    form=st.sampled_from(["flat", "column", "one-hot"]),
)
def test_labels_of_any_form_are_the_same_labels(labels: list[int], kind: torch.dtype, form: str) -> None:
    y = torch.tensor(labels)
    given_as = {"flat": y, "column": y[:, None], "one-hot": torch.nn.functional.one_hot(y, 6)}[form].to(kind)
    found = as_labels(given_as, 6, "rows.npz")
    assert found.dtype is torch.int64
    assert found.tolist() == labels


@pytest.mark.parametrize(
    ("y", "classes", "words"),
    [
        (
            torch.tensor([0, 12]),
            10,
            r"y \(int64, min 0, max 12\): labels go up to 12, but the model has 10 outputs$",
        ),
        (torch.tensor([1, 10]), 10, r"min 1, max 10\).*10 outputs; they look 1-based: subtract 1"),
        (torch.tensor([-1, 3], dtype=torch.int8), 10, r"y \(int8, min -1, max 3\): labels start at 0"),
        (torch.tensor([-1.0, 3.0]), None, r"y \(float32, min -1.0, max 3.0\): labels start at 0"),
        (torch.tensor([0.0, 0.5]), 10, r"y \(float32, min 0.0, max 0.5\): labels must be whole numbers"),
        (torch.tensor([0.0, torch.nan]), 10, "whole numbers"),
        (torch.tensor([0.0, 1e20]), None, "whole numbers"),
        (torch.tensor([[0, 1], [1, 1]]), 2, r"shape \(2, 2\) is neither"),
        (torch.tensor([[0.2, 0.8], [0.0, 1.0]]), 2, r"shape \(2, 2\) is neither"),
        (torch.zeros(2, 3, 4), 2, r"shape \(2, 3, 4\) is neither"),
    ],
)
def test_labels_that_lose_something_are_refused(y: Tensor, classes: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        as_labels(y, classes, "rows.npz")
    assert caught.value.key == "task.data"
    assert caught.value.problem.startswith("rows.npz: ")


def test_no_labels_are_labels() -> None:
    assert as_labels(torch.zeros(0), 3, "none").shape == (0,)


@pytest.mark.parametrize(
    ("shape", "tail", "after"),
    [
        ((4,), (1,), (4, 1)),
        ((4, 1), (), (4,)),
        ((4, 3, 1), (3,), (4, 3)),
        ((4, 3), (3,), (4, 3)),
        ((4,), (), (4,)),
    ],
)
def test_targets_take_the_shape_of_the_outputs(
    shape: tuple[int, ...], tail: tuple[int, ...], after: tuple[int, ...]
) -> None:
    y = torch.arange(float(np.prod(shape))).reshape(shape)
    found = as_targets(y, tail, "rows.npz")
    assert found.shape == after
    assert found.flatten().tolist() == y.flatten().tolist()


@pytest.mark.parametrize(
    ("shape", "tail"), [((4,), (2,)), ((4, 3), ()), ((4, 2), (3,)), ((4, 2, 3), (3, 2)), ((4, 6), (2, 3))]
)
def test_targets_are_never_broadcast(shape: tuple[int, ...], tail: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        as_targets(torch.zeros(shape), tail, "rows.npz")
    assert str(shape[1:]) in caught.value.problem
    assert str(tail) in caught.value.problem
