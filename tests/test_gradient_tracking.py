"""Gradient tracking in both orders: the traces of w and y, the quantity that is conserved, and what theory says."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, State
from peer.algorithms.gradient_tracking import AdaptThenCombine, Diging, gradient_of
from peer.learner import message_forms
from tests.four_peers import (
    COMPLETE,
    DIGITS,
    OPTIMUM,
    RING,
    TRACES,
    HeardByAll,
    Matrix,
    after,
    check_rows_are_peers,
    check_the_distance_shrinks_by_slem,
    check_the_mean_moves_by_the_mean_step,
    check_what_was_sent_stays,
    descend,
    doubly_stochastic,
    gradient,
    learners,
    moduli,
    numbers,
    play,
    random_rows,
    seeds,
    starting,
    symmetric,
)

ORDERS: dict[str, Algorithm] = {"ATC": AdaptThenCombine(), "DIGing": Diging()}
BOTH = pytest.mark.parametrize("algorithm", ORDERS.values(), ids=ORDERS)
CASES = [
    pytest.param(algorithm, lr, TRACES["gradient_tracking_ring4"][f"{name}_lr{lr}"], id=f"{name}-{lr}")
    for name, algorithm in ORDERS.items()
    for lr in (0.1, 0.05, 0.02)
]


def one_round(algorithm: Algorithm, state: State, found: Tensor, lr: float, W: Matrix) -> tuple[State, Tensor]:
    """Return the state after a round in which the gradients are `found`, and y: what the peers stepped along.

    DIGing says y; in the order atc the second message is x - lr y.
    """
    x = algorithm.at(state)
    state = algorithm.learned(state, -lr * found, lr)
    for k in range(algorithm.exchanges):
        state, message = algorithm.message(state, k, None)
        state = algorithm.update(state, k, HeardByAll(W, message))
    return state, message["y"] if "y" in message else (x - message["x"]) / lr


# ---- The traces


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_the_traces_of_the_ring(algorithm: Algorithm, lr: float, truth: dict[str, Any]) -> None:
    peers = learners(algorithm, lr=lr)
    for round, expected in enumerate(truth["w"][1:]):
        assert play(peers, round) == pytest.approx(expected, rel=DIGITS)


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_what_the_peers_follow(algorithm: Algorithm, lr: float, truth: dict[str, Any]) -> None:
    """y starts as the own gradient; its sum over the peers is that of the gradients ever after."""
    state = starting(algorithm)
    for w, expected in zip(truth["w"], truth["y"], strict=True):
        found = gradient(algorithm.params(state))
        assert algorithm.params(state)[:, 0].tolist() == pytest.approx(w, rel=DIGITS)
        state, y = one_round(algorithm, state, found, lr, RING)
        assert y[:, 0].tolist() == pytest.approx(expected, rel=DIGITS)
        assert y.sum().item() == pytest.approx(found.sum().item(), rel=1e-12)


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_the_limit_is_the_optimum_of_the_mean_loss_or_there_is_none(
    algorithm: Algorithm, lr: float, truth: dict[str, Any]
) -> None:
    found = after(algorithm, 400, lr)
    if truth["converges_to_7_3"]:
        assert found == pytest.approx([OPTIMUM] * 4, rel=1e-12)
    else:
        assert min(map(abs, found)) > 1e50


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_the_two_largest_eigenvalues_of_a_round(algorithm: Algorithm, lr: float, truth: dict[str, Any]) -> None:
    """One is 1, of the sum that is conserved."""
    assert moduli(algorithm, lr)[:2] == pytest.approx(sorted(truth["rho"], reverse=True), rel=DIGITS)


# ---- Theorems


@BOTH
@settings(deadline=None, max_examples=40)
@given(data=st.data(), count=st.integers(1, 5), seed=seeds)
def test_the_sum_of_y_is_that_of_the_gradients(
    algorithm: Algorithm, data: st.DataObject, count: int, seed: int
) -> None:
    """Whatever they are, and though W and the learning rate change from round to round."""
    found = random_rows(seed, 6, count, 2)
    state = algorithm.init(found[0])
    for gradients in found[1:]:
        orders = data.draw(st.lists(st.permutations(range(count)), min_size=1, max_size=3))
        W = np.mean([np.eye(count)[list(order)] for order in orders], axis=0)
        state, y = one_round(algorithm, state, gradients, data.draw(st.sampled_from([0.1, 0.02])), W)
        torch.testing.assert_close(y.sum(dim=0), gradients.sum(dim=0), rtol=1e-11, atol=1e-11)


@BOTH
@settings(deadline=None, max_examples=40)
@given(W=doubly_stochastic(), seed=seeds)
def test_the_mean_moves_by_the_mean_step(algorithm: Algorithm, W: Matrix, seed: int) -> None:
    check_the_mean_moves_by_the_mean_step(algorithm, W, seed)


@BOTH
@settings(deadline=None, max_examples=40)
@given(W=symmetric(), seed=seeds)
def test_without_learning_the_distance_shrinks_by_slem(algorithm: Algorithm, W: Matrix, seed: int) -> None:
    check_the_distance_shrinks_by_slem(algorithm, W, seed)


@BOTH
@settings(deadline=None, max_examples=20)
@given(W=doubly_stochastic(), seed=seeds)
def test_rows_are_peers(algorithm: Algorithm, W: Matrix, seed: int) -> None:
    check_rows_are_peers(algorithm, W, seed)


@BOTH
def test_what_was_sent_stays(algorithm: Algorithm) -> None:
    check_what_was_sent_stays(algorithm)


def test_with_all_to_all_links_it_is_gradient_descent_on_the_mean_loss() -> None:
    """In the order atc: DIGing takes its first step before anything is mixed."""
    peers = learners(AdaptThenCombine(), W=COMPLETE)
    for round, expected in enumerate(numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"])[1:]):
        assert play(peers, round, COMPLETE) == pytest.approx([expected] * 4, rel=1e-12)


@BOTH
def test_the_learning_rate_may_change(algorithm: Algorithm) -> None:
    """What is followed are gradients, not steps: the optimum stays where it is."""
    rates = [0.02, 0.005, 0.01]
    state = starting(algorithm)
    for round in range(900):
        state = descend(algorithm, state, rates[round % 3])
    assert algorithm.params(state)[:, 0].tolist() == pytest.approx([OPTIMUM] * 4, rel=1e-12)


# ---- Parts


def test_the_gradient_of_a_plain_step() -> None:
    delta = torch.tensor([[0.5, -1.0]], dtype=torch.float32)
    assert gradient_of(delta, 0.25).tolist() == [[-2.0, 4.0]]
    assert gradient_of(delta, 0.25).dtype is torch.float32


def test_a_step_of_rate_0_tells_no_gradient() -> None:
    assert gradient_of(torch.ones(2, 3), 0.0).tolist() == [[0.0] * 3] * 2


def test_only_a_message_that_holds_parameters_says_them() -> None:
    """In the order atc the first one is about gradients."""
    atc, diging = AdaptThenCombine(), Diging()
    x, y = torch.ones(2), torch.zeros(2)
    assert atc.parameters_in({"y": y}, 0) is None
    assert atc.parameters_in({"x": x}, 1) is x
    assert diging.parameters_in({"x": x, "y": y}, 0) is x


def sizes(messages: Sequence[State]) -> list[int]:
    return [sum(x.numel() for x in message.values()) for message in messages]


def test_both_orders_send_as_much() -> None:
    x = torch.ones(5)
    assert sizes(message_forms(AdaptThenCombine(), x)) == [5, 5]
    assert sizes(message_forms(Diging(), x)) == [10]
