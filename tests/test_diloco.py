"""DiLoCo: its traces, torch's own optimiser, and what it is without momentum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.algorithms.diloco import DiLoCo
from peer.algorithms.dpsgd import AdaptThenCombine
from tests.four_peers import (
    COMPLETE,
    DIGITS,
    TRACES,
    Matrix,
    check_rows_are_peers,
    check_the_distance_shrinks_by_slem,
    check_the_mean_moves_by_the_mean_step,
    check_what_was_sent_stays,
    doubly_stochastic,
    learners,
    play,
    random_rows,
    seeds,
    step,
    symmetric,
)

PLAIN = DiLoCo(lr=1.0, momentum=0.0)
FORMS = {"nesterov": DiLoCo(), "heavy_ball": DiLoCo(nesterov=False)}
BOTH = pytest.mark.parametrize("algorithm", FORMS.values(), ids=FORMS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("local_steps", "lr"), [(2, 0.1), (4, 0.01), (8, 0.01)])
def test_the_traces_of_all_with_all(local_steps: int, lr: float, form: str) -> None:
    """Outer rate 0.7 and momentum 0.9, the paper's and the defaults."""
    truth = TRACES["DiLoCo_outer"]["traces"][f"H={local_steps},inner_lr={lr},{form}"]
    peers = learners(FORMS[form], W=COMPLETE, lr=lr, local_steps=local_steps)
    for round, expected in enumerate(truth[1:]):
        assert play(peers, round, COMPLETE) == pytest.approx([expected] * 4, rel=DIGITS)


@settings(deadline=None, max_examples=40)
@given(lr=st.floats(0, 2), momentum=st.floats(0, 0.99), nesterov=st.booleans(), seed=seeds)
def test_the_outer_step_is_that_of_torch(lr: float, momentum: float, nesterov: bool, seed: int) -> None:
    """One peer that hears itself alone: the outer gradient is how far it came, with the sign turned."""
    found = random_rows(seed, 6, 1, 3)
    weights = found[0].clone().requires_grad_()
    theirs = torch.optim.SGD([weights], lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0)
    ours = DiLoCo(lr, momentum, nesterov)
    state = ours.init(found[0])
    for delta in found[1:]:
        state = step(ours, state, delta, 0.1, COMPLETE[:1, :1] * 4)
        weights.grad = -delta
        theirs.step()
        torch.testing.assert_close(ours.params(state), weights.detach(), rtol=1e-12, atol=1e-12)


# ---- Theorems


@settings(deadline=None, max_examples=40)
@given(W=doubly_stochastic(), seed=seeds, nesterov=st.booleans())
def test_with_outer_rate_1_and_no_momentum_it_is_dpsgd(W: Matrix, seed: int, nesterov: bool) -> None:
    """And among all, where every weight is 1/n, federated averaging."""
    diloco, dpsgd = DiLoCo(lr=1.0, momentum=0.0, nesterov=nesterov), AdaptThenCombine()
    found = random_rows(seed, 6, len(W), 3)
    one, other = diloco.init(found[0]), dpsgd.init(found[0])
    for delta in found[1:]:
        one, other = step(diloco, one, delta, 0.1, W), step(dpsgd, other, delta, 0.1, W)
        torch.testing.assert_close(diloco.params(one), dpsgd.params(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("local_steps", [1, 2, 4, 8])
def test_with_outer_rate_1_and_no_momentum_its_trace_is_that_of_local_sgd(local_steps: int) -> None:
    truth = TRACES["local_SGD_FedAvg_lr0.1"]["traces"][f"H={local_steps},weights=equal"]["w"]
    peers = learners(PLAIN, W=COMPLETE, local_steps=local_steps)
    for round, expected in enumerate(truth[1:]):
        assert play(peers, round, COMPLETE) == pytest.approx([expected] * 4, rel=DIGITS)


@BOTH
@settings(deadline=None, max_examples=40)
@given(W=doubly_stochastic(), seed=seeds)
def test_the_mean_does_not_depend_on_who_hears_whom(algorithm: DiLoCo, W: Matrix, seed: int) -> None:
    """The mean of the anchors takes the outer steps that it would take if all heard all."""
    count = len(W)
    found = random_rows(seed, 6, count, 3)
    some, everyone = algorithm.init(found[0]), algorithm.init(found[0])
    for delta in found[1:]:
        some = step(algorithm, some, delta, 0.1, W)
        everyone = step(algorithm, everyone, delta, 0.1, 0 * W + 1 / count)
        one, other = (algorithm.params(state).mean(dim=0) for state in (some, everyone))
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@settings(deadline=None, max_examples=20)
@given(W=doubly_stochastic(), seed=seeds)
def test_without_momentum_the_mean_moves_by_the_mean_step(W: Matrix, seed: int) -> None:
    check_the_mean_moves_by_the_mean_step(PLAIN, W, seed)


@settings(deadline=None, max_examples=20)
@given(W=symmetric(), seed=seeds)
def test_without_momentum_and_learning_the_distance_shrinks_by_slem(W: Matrix, seed: int) -> None:
    check_the_distance_shrinks_by_slem(PLAIN, W, seed)


@BOTH
@settings(deadline=None, max_examples=20)
@given(W=doubly_stochastic(), seed=seeds)
def test_rows_are_peers(algorithm: DiLoCo, W: Matrix, seed: int) -> None:
    check_rows_are_peers(algorithm, W, seed)


@BOTH
def test_what_was_sent_stays(algorithm: DiLoCo) -> None:
    check_what_was_sent_stays(algorithm)
