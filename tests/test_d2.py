"""D2: its traces, where it diverges and how fast, and what theory says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from peer.algorithms.d2 import D2, LAMBDA_MIN
from peer.algorithms.dpsgd import AdaptThenCombine
from tests.four_peers import (
    DIGITS,
    LAZY,
    OPTIMUM,
    RING,
    TRACES,
    Matrix,
    after,
    check_rows_are_peers,
    check_the_mean_moves_by_the_mean_step,
    check_what_was_sent_stays,
    descend,
    doubly_stochastic,
    learners,
    moduli,
    play,
    seeds,
    starting,
    step,
)

TRUTH = TRACES["D2_ring4"]["traces"]
CASES = [
    pytest.param(W, lr, TRUTH[f"{name}_lr{lr}"], id=f"{name}-{lr}")
    for name, W in (("W_third_ring", RING), ("lazy_(I+W)/2", LAZY))
    for lr in (0.1, 0.05)
]
BEYOND: Matrix = np.array([[1, 2, 0, 2], [2, 1, 2, 0], [0, 2, 1, 2], [2, 0, 2, 1]]) / 5
"""A ring whose eigenvalues are 1, 1/5, 1/5 and -3/5, which is below -1/3."""

UNSTABLE = [pytest.param(lr, TRACES["D2_divergence_example"]["traces"][f"lr{lr}"], id=str(lr)) for lr in (0.05, 0.01)]


# ---- The traces


@pytest.mark.parametrize(("W", "lr", "truth"), CASES)
def test_the_traces(W: Matrix, lr: float, truth: dict[str, Any]) -> None:
    peers = learners(D2(), W=W, lr=lr)
    for round, expected in enumerate(truth["w"][1:]):
        assert play(peers, round, W) == pytest.approx(expected, rel=DIGITS)


@pytest.mark.parametrize(("W", "lr", "truth"), CASES)
def test_the_limit_is_the_optimum_of_the_mean_loss(W: Matrix, lr: float, truth: dict[str, Any]) -> None:
    """Also on the ring of even length, whose smallest eigenvalue is -1/3 exactly."""
    assert truth["converges_to_7_3"]
    assert np.linalg.eigvalsh(W)[0] == pytest.approx(truth["lambda_min_W"])
    assert after(D2(), 200, lr, W) == pytest.approx([OPTIMUM] * 4, rel=1e-12)


@pytest.mark.parametrize(("W", "lr", "truth"), CASES)
def test_the_two_largest_eigenvalues_of_a_round(W: Matrix, lr: float, truth: dict[str, Any]) -> None:
    """One is 1, of what is conserved: how the mean has moved less what it should have."""
    assert moduli(D2(), lr, W)[:2] == pytest.approx(truth["two_largest_moduli"], rel=DIGITS)


@pytest.mark.parametrize(("lr", "truth"), UNSTABLE)
def test_the_traces_below_a_third(lr: float, truth: dict[str, Any]) -> None:
    peers = learners(D2(), W=BEYOND, lr=lr)
    for round, expected in enumerate(truth["w"][1:]):
        assert play(peers, round, BEYOND) == pytest.approx(expected, rel=DIGITS)


@pytest.mark.parametrize(("lr", "truth"), UNSTABLE)
def test_below_a_third_it_diverges_by_its_largest_eigenvalue(lr: float, truth: dict[str, Any]) -> None:
    """However small lr is, and where D-PSGD with the same W converges."""
    state = starting(D2())
    for _ in range(200):
        before, state = state, descend(D2(), state, lr, BEYOND)
    found, growth = D2().params(state), truth["dominant_eigenvalue"][0]
    assert found[:, 0].abs().tolist() == pytest.approx(truth["abs_w_after_200_steps"], rel=DIGITS)
    assert (found / D2().params(before))[:, 0].tolist() == pytest.approx([growth] * 4, rel=DIGITS)
    assert moduli(D2(), lr, BEYOND)[0] == pytest.approx(abs(growth), rel=DIGITS)
    assert moduli(AdaptThenCombine(), lr, BEYOND)[0] == pytest.approx(truth["dpsgd_ATC_same_W_rho"], rel=DIGITS)


# ---- Theorems


@pytest.mark.parametrize(("factor", "grows"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("curvature", [0.0, 0.1, 0.5, 0.8])
def test_where_a_mode_is_stable(curvature: float, factor: float, grows: bool) -> None:
    """Two peers differ in one mode of W, of eigenvalue l: with lr x curvature c, it stays iff l > -1 / (3 - 2 c)."""
    critical = -1 / (3 - 2 * curvature)
    assert critical <= LAMBDA_MIN == -1 / 3, "what is allowed is stable whatever the curvature"
    own = (1 + factor * critical) / 2
    W = np.array([[own, 1 - own], [1 - own, own]])
    state, sizes = D2().init(torch.tensor([[1.0], [-1.0]], dtype=torch.float64)), []
    for _ in range(1000):
        state = step(D2(), state, -curvature * D2().at(state), 1.0, W)
        sizes.append(float(D2().params(state).abs().max()))
    assert (sizes[-1] > sizes[-101]) is grows


@settings(deadline=None, max_examples=40)
@given(W=doubly_stochastic(), seed=seeds)
def test_the_mean_moves_by_the_mean_step(W: Matrix, seed: int) -> None:
    check_the_mean_moves_by_the_mean_step(D2(), W, seed)


@settings(deadline=None, max_examples=20)
@given(W=doubly_stochastic(), seed=seeds)
def test_rows_are_peers(W: Matrix, seed: int) -> None:
    check_rows_are_peers(D2(), W, seed)


def test_the_first_round_is_that_of_dpsgd() -> None:
    assert play(learners(D2()), 0) == play(learners(AdaptThenCombine()), 0)


def test_what_was_sent_stays() -> None:
    check_what_was_sent_stays(D2())
