"""How the messages of a neighbourhood become one: order, dtype, and what is not finite."""

from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.combine import HeardMessages, is_finite, leave_out, screen, weighted_sum


def x(*numbers: float, dtype: torch.dtype = torch.float64) -> Message:
    return {"x": torch.tensor(numbers, dtype=dtype)}


def heard(*terms: tuple[float, Message], me: int = 0) -> HeardMessages:
    return HeardMessages(tuple((weight, message, i == me) for i, (weight, message) in enumerate(terms)))


def test_a_sum_of_two() -> None:
    assert weighted_sum([(0.25, x(4.0, 8.0)), (0.75, x(0.0, 4.0))])["x"].tolist() == [1.0, 5.0]


def test_each_tensor_of_a_message_is_summed() -> None:
    one = {"x": torch.ones(2), "weight": torch.tensor([2.0])}
    total = weighted_sum([(0.5, one), (0.5, {"x": torch.zeros(2), "weight": torch.tensor([4.0])})])
    assert total["x"].tolist() == [0.5, 0.5]
    assert total["weight"].tolist() == [3.0]


def test_the_order_of_the_terms_is_the_order_of_the_sum() -> None:
    """In float32 1e8 + 1 is 1e8: (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1."""
    big, one, back = (x(v, dtype=torch.float32) for v in (1e8, 1.0, -1e8))
    assert weighted_sum([(1.0, big), (1.0, one), (1.0, back)])["x"].item() == 0.0
    assert weighted_sum([(1.0, big), (1.0, back), (1.0, one)])["x"].item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_stays_and_no_message_changes(dtype: torch.dtype) -> None:
    messages = [x(1.0, dtype=dtype), x(2.0, dtype=dtype)]
    assert weighted_sum([(1 / 3, message) for message in messages])["x"].dtype is dtype
    assert [message["x"].item() for message in messages] == [1.0, 2.0]


@pytest.mark.parametrize("theirs", [torch.zeros(4, 1), torch.zeros(4, dtype=torch.float64), torch.zeros(1)])
def test_nothing_is_broadcast_or_cast(theirs: Tensor) -> None:
    with pytest.raises(AssertionError, match="x: "):
        weighted_sum([(0.5, {"x": torch.zeros(4)}), (0.5, {"x": theirs})])


@given(
    st.lists(st.tuples(st.floats(0, 1), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3)), min_size=1, max_size=6)
)
def test_rows_that_sum_to_one_stay_within_what_was_said(terms: list[tuple[float, list[float]]]) -> None:
    """A convex combination lies between the least and the greatest."""
    total = sum(weight for weight, _ in terms)
    if total < 1e-3:
        return
    mixed = weighted_sum([(weight / total, x(*numbers)) for weight, numbers in terms])["x"]
    said = torch.tensor([numbers for _, numbers in terms], dtype=torch.float64)
    assert bool((mixed <= said.max(0).values + 1e-6).all())
    assert bool((mixed >= said.min(0).values - 1e-6).all())


def test_the_sum_is_computed_once() -> None:
    two = heard((0.5, x(1.0)), (0.5, x(3.0)))
    assert two.sum() is two.sum()


# ---- Edges


def test_edges_are_the_others_in_node_order() -> None:
    edges = heard((0.2, x(1.0, 2.0)), (0.5, x(3.0, 4.0)), (0.3, x(5.0, 6.0)), me=1).edges()
    assert edges.receivers.tolist() == [0, 0]
    assert edges.weights.tolist() == [[0.2], [0.3]]
    assert edges.own["x"].tolist() == [[3.0, 4.0], [3.0, 4.0]]
    assert edges.theirs["x"].tolist() == [[1.0, 2.0], [5.0, 6.0]]


def test_a_peer_alone_has_no_edges() -> None:
    edges = heard((1.0, x(1.0, 2.0))).edges()
    assert edges.weights.shape == (0, 1)
    assert edges.own["x"].shape == edges.theirs["x"].shape == (0, 2)


# ---- What is not finite


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_what_is_not_finite_is_taken_out_and_its_weight_goes_to_the_own(bad: float) -> None:
    kept, out = screen(heard((0.25, x(1.0)), (0.25, x(bad)), (0.5, x(3.0)), me=2))
    assert out == [1]
    assert [(weight, own) for weight, _, own in kept.terms] == [(0.25, False), (0.75, True)]
    assert kept.sum()["x"].item() == 0.25 * 1.0 + 0.75 * 3.0


def test_one_bad_tensor_of_a_message_is_enough() -> None:
    theirs = {"x": torch.ones(2), "weight": torch.tensor([nan])}
    assert not is_finite(theirs)
    _, out = screen(heard((0.5, {"x": torch.ones(2), "weight": torch.ones(1)}), (0.5, theirs)))
    assert out == [1]


def test_the_own_message_is_never_taken_out() -> None:
    said = heard((0.5, x(nan)), (0.5, x(1.0)))
    kept, out = screen(said)
    assert kept is said
    assert out == []


def test_when_all_others_are_bad_the_own_message_stays_as_it_is() -> None:
    """Whatever the weights, they sum to 1: 0.1 + 0.2 + 0.7 is not 1 in float64, added as they come."""
    kept, out = screen(heard((0.7, x(1.5)), (0.1, x(nan)), (0.2, x(inf))))
    assert out == [1, 2]
    assert kept.terms[0][0] == 1.0
    assert kept.sum()["x"].item() == 1.5


def test_where_columns_sum_to_one_the_weight_goes_to_nobody() -> None:
    """The others' terms are shares that they gave: what one keeps does not grow because another's is bad."""
    kept, out = screen(heard((1.0, x(nan)), (0.5, x(3.0)), (1.0, x(2.0)), me=1), keeps_sum=False)
    assert out == [0]
    assert [(weight, own) for weight, _, own in kept.terms] == [(0.5, True), (1.0, False)]
    assert kept.sum()["x"].item() == 0.5 * 3.0 + 2.0


# ---- What is left out


def test_the_weights_of_those_left_out_go_to_the_own_message_at_its_place() -> None:
    said = heard((0.125, x(1.0)), (0.5, x(2.0)), (0.25, x(3.0)), (0.125, x(4.0)), me=1)
    kept = leave_out(said, [0, 3])
    assert [(weight, message["x"].item(), own) for weight, message, own in kept.terms] == [
        (0.75, 2.0, True),
        (0.25, 3.0, False),
    ]
    assert leave_out(said, []) is said


def test_the_weight_of_many_that_are_left_out_is_added_without_rounding_on_the_way() -> None:
    """Ten times 0.1 is not 1 in float64, added as they come."""
    said = heard((0.0, x(1.0)), *((0.1, x(2.0)) for _ in range(10)))
    assert leave_out(said, range(1, 11)).terms[0][0] == 1.0
