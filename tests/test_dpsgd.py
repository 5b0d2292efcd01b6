"""D-PSGD in both orders: the traces of four peers in a ring, and what theory says of them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from peer.algorithms.algorithm import Algorithm
from peer.algorithms.dpsgd import AdaptThenCombine, CombineThenAdapt
from peer.protocol.messages import Shares
from tests.four_peers import (
    COMPLETE,
    DIGITS,
    RING,
    SAMPLES,
    START,
    TRACES,
    Matrix,
    after,
    check_rows_are_peers,
    check_the_distance_shrinks_by_slem,
    check_the_mean_moves_by_the_mean_step,
    check_what_was_sent_stays,
    descend,
    doubly_stochastic,
    heard_by,
    learners,
    moduli,
    numbers,
    play,
    seeds,
    starting,
    symmetric,
)

BOTH = pytest.mark.parametrize("algorithm", [AdaptThenCombine(), CombineThenAdapt()], ids=["atc", "cta"])
TRUTH = TRACES["dpsgd_ring4"]
CASES = [
    pytest.param(algorithm, lr, TRUTH[f"{name}_lr{lr}"], id=f"{name}-{lr}")
    for name, algorithm in (("ATC", AdaptThenCombine()), ("CTA_Lian2017", CombineThenAdapt()))
    for lr in (0.1, 0.05)
]


# ---- The traces


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_the_traces_of_the_ring(algorithm: Algorithm, lr: float, truth: dict[str, list[list[str]]]) -> None:
    peers = learners(algorithm, lr=lr)
    for round, expected in enumerate(truth["exact"][1:]):
        assert play(peers, round) == pytest.approx(numbers(expected), rel=1e-12)


@pytest.mark.parametrize("lr", [0.1, 0.05])
def test_what_adapt_then_combine_says_is_what_the_third_order_holds(lr: float) -> None:
    """Mixing first and taking the gradient at what was mixed is the same sequence, seen half a round later."""
    peers = learners(AdaptThenCombine(), lr=lr)
    for round, expected in enumerate(TRUTH[f"mix_then_gradient_at_mixed_lr{lr}"]["exact"][1:]):
        messages = [peer.train(round) for peer in peers]
        said = [message["x"].item() for message in messages if not isinstance(message, Shares)]
        assert said == pytest.approx(numbers(expected), rel=1e-12)
        for peer in peers:
            peer.mix(0, heard_by(peer.me, messages, RING))


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_a_fixed_point_stays(algorithm: Algorithm, lr: float, truth: dict[str, list[str]]) -> None:
    """Also where the iteration is unstable: rounding alone takes it away, and slowly at first."""
    fixed = numbers(truth["fixed_point_exact"])
    peers = learners(algorithm, lr=lr, starts=fixed)
    for round in range(3):
        assert play(peers, round) == pytest.approx(fixed, rel=1e-13)
    assert np.mean(fixed) == pytest.approx(truth["fixed_point_mean"], rel=DIGITS)


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_a_stable_iteration_gets_to_its_fixed_point(algorithm: Algorithm, lr: float, truth: dict[str, Any]) -> None:
    found = after(algorithm, 200, lr)
    if truth["stable"]:
        assert found == pytest.approx(numbers(truth["fixed_point_exact"]), rel=1e-12)
    else:
        assert min(map(abs, found)) > 1e20


@pytest.mark.parametrize(("algorithm", "lr", "truth"), CASES)
def test_the_spectral_radius_of_a_round(algorithm: Algorithm, lr: float, truth: dict[str, float]) -> None:
    radius = moduli(algorithm, lr)[0]
    assert radius == pytest.approx(truth["iteration_matrix_spectral_radius"], rel=DIGITS)
    assert (radius < 1) is truth["stable"]


def test_combine_then_adapt_grows_by_its_spectral_radius() -> None:
    """Its iteration W - lr diag(x^2) has spectral radius 1.481: so fast do the steps grow."""
    peers = learners(CombineThenAdapt())
    x = np.array([play(peers, round) for round in range(80)])
    steps = np.linalg.norm(np.diff(x, axis=0), axis=1)
    radius = TRUTH["CTA_Lian2017_lr0.1"]["iteration_matrix_spectral_radius"]
    assert steps[-1] / steps[-2] == pytest.approx(radius, rel=1e-6)


CRITICAL = TRACES["dpsgd_critical_lr_ring4"]
CRITICAL_CASES = [
    pytest.param(AdaptThenCombine(), RING, CRITICAL["ATC"], id="atc"),
    pytest.param(CombineThenAdapt(), RING, CRITICAL["CTA"], id="cta"),
    pytest.param(AdaptThenCombine(), COMPLETE, CRITICAL["sync_mean"], id="mean of all"),
    pytest.param(AdaptThenCombine(), np.eye(4), CRITICAL["single_worker3"], id="alone"),
]


@pytest.mark.parametrize(("algorithm", "W", "critical"), CRITICAL_CASES)
def test_the_critical_learning_rate(algorithm: Algorithm, W: Matrix, critical: float) -> None:
    assert moduli(algorithm, critical, W)[0] == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(("algorithm", "W", "critical"), CRITICAL_CASES)
@pytest.mark.parametrize(("factor", "grows"), [(0.999, False), (1.001, True)])
def test_steps_shrink_below_the_critical_rate_and_grow_above(
    algorithm: Algorithm, W: Matrix, critical: float, factor: float, grows: bool
) -> None:
    state, sizes = starting(algorithm), []
    for _ in range(400):
        before = state
        state = descend(algorithm, state, factor * critical, W)
        sizes.append(float(torch.linalg.vector_norm(algorithm.params(state) - algorithm.params(before))))
    assert (sizes[-1] > sizes[-101]) is grows


# ---- Several local steps


LOCAL = TRACES["local_SGD_FedAvg_lr0.1"]["traces"]
PROXIMAL = TRACES["FedProx_lr0.05_H4"]["traces"]
SERVERS = {"equal": COMPLETE, "10/20/30/40": SAMPLES}


@pytest.mark.parametrize("weights", SERVERS)
@pytest.mark.parametrize("local_steps", [1, 2, 4, 8])
def test_federated_averaging(local_steps: int, weights: str) -> None:
    """Where all hear all with the same weights, everyone holds what a server would."""
    truth, W = LOCAL[f"H={local_steps},weights={weights}"], SERVERS[weights]
    peers = learners(AdaptThenCombine(), W=W, local_steps=local_steps)
    for round, expected in enumerate(truth["w"][1:]):
        assert play(peers, round, W) == pytest.approx([expected] * 4, rel=DIGITS)


@pytest.mark.parametrize("weights", SERVERS)
@pytest.mark.parametrize("local_steps", [1, 2, 4, 8])
def test_the_limit_of_federated_averaging(local_steps: int, weights: str) -> None:
    """It drifts from the optimum of the mean loss: w = sum p_i c_i w_i / sum p_i c_i, c_i = 1 - (1 - lr x_i^2)^H."""
    truth, W = LOCAL[f"H={local_steps},weights={weights}"], SERVERS[weights]
    pull = W[0] * (1 - (1 - 0.1 * np.arange(1, 5) ** 2) ** local_steps)
    limit = float(pull @ [3, 5 / 2, 7 / 3, 9 / 4] / pull.sum())
    assert limit == pytest.approx(truth["fixed_point"], rel=DIGITS)
    peers = learners(AdaptThenCombine(), W=W, local_steps=local_steps)
    for round in range(40):
        found = play(peers, round, W)
    assert found == pytest.approx([limit] * 4, rel=1e-12)


@pytest.mark.parametrize(("name", "mu"), [("mu=1.0", 1.0), ("mu=0.1", 0.1), ("mu=0 (FedAvg)", 0.0)])
def test_a_proximal_term(name: str, mu: float) -> None:
    """FedProx: it pulls to where the round began, which is what all hold."""
    peers = learners(AdaptThenCombine(), W=SAMPLES, lr=0.05, local_steps=4, proximal_mu=mu)
    for round, expected in enumerate(PROXIMAL[name]["w"][1:]):
        assert play(peers, round, SAMPLES) == pytest.approx([expected] * 4, rel=DIGITS)
    for round in range(5, 30):
        found = play(peers, round, SAMPLES)
    assert found == pytest.approx([PROXIMAL[name]["fixed_point"]] * 4, rel=DIGITS)


# ---- Theorems


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
def test_without_learning_the_mean_stays_and_the_distance_shrinks_by_the_ring_s_slem(algorithm: Algorithm) -> None:
    """The ring's eigenvalues are 1, 1/3, 1/3 and -1/3."""
    starts = [1.0, -2.0, 7.0, 4.0]
    peers = learners(algorithm, lr=0.0, starts=starts)
    distance = np.var(starts)
    for round in range(10):
        x = play(peers, round)
        assert np.mean(x) == pytest.approx(2.5, rel=1e-12)
        assert np.var(x) == pytest.approx(distance / 9, rel=1e-9, abs=1e-15)  # all but the mean has modulus 1/3
        distance = np.var(x)


@BOTH
def test_with_rows_that_sum_to_one_alone_the_limit_is_a_weighted_mean(algorithm: Algorithm) -> None:
    """A star in which each gives equal weights: pi W = pi for pi = (4, 2, 2, 2) / 10."""
    W = np.array([[1, 1, 1, 1], [2, 2, 0, 0], [2, 0, 2, 0], [2, 0, 0, 2]]) / 4
    peers = learners(algorithm, W=W, lr=0.0, starts=[1.0, 2.0, 3.0, 4.0])
    for round in range(60):
        found = play(peers, round, W)
    assert found == pytest.approx([(4 * 1 + 2 * (2 + 3 + 4)) / 10] * 4, rel=1e-12)


def test_with_all_to_all_links_adapt_then_combine_is_gradient_descent_on_the_mean_loss() -> None:
    """x <- x - lr mean_i g_i(x): x^2 and xy have means 7.5 and 17.5, so that x <- x - lr (7.5 x - 17.5)."""
    truth = TRACES["sync_mean_gradient_lr0.1"]
    peers = learners(AdaptThenCombine(), W=COMPLETE)
    for t, expected in enumerate(numbers(truth["exact"])[1:], start=1):
        assert play(peers, t - 1, COMPLETE) == pytest.approx([expected] * 4, rel=1e-12)
        assert expected == pytest.approx(7 / 3 - 5 / 6 * 0.25**t, rel=1e-12)


@BOTH
def test_a_peer_alone_does_gradient_descent(algorithm: Algorithm) -> None:
    """w_t = w* + (1.5 - w*) (1 - lr x^2)^t."""
    peers, x, optima = learners(algorithm, W=np.eye(4)), np.arange(1, 5), np.array([3, 5 / 2, 7 / 3, 9 / 4])
    for t in range(1, 6):
        expected = optima + (START - optima) * (1 - 0.1 * x**2) ** t
        assert play(peers, t - 1, np.eye(4)) == pytest.approx(expected.tolist(), rel=1e-12)


@BOTH
def test_what_was_sent_stays(algorithm: Algorithm) -> None:
    check_what_was_sent_stays(algorithm)
