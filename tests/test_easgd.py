"""Elastic averaging, both halves: the traces of four workers and a centre, what stays, and where it is stable."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import State
from peer.algorithms.beside import ElasticWorker
from peer.algorithms.combine import weighted_sum
from peer.algorithms.easgd import Elastic, alpha_limit, pull
from peer.algorithms.server import Sgd
from tests.four_peers import CURVATURES, DIGITS, OPTIMUM, SLOPES, START, TRACES, random_rows, seeds

SYNCHRONOUS = TRACES["EASGD_sync"]
TURNS = TRACES["EASGD_async_round_robin"]


def pulled(c: State, pushed: Tensor, alpha: float) -> State:
    """Return the centre after the pull of all rows, (n, 1), that were pushed, summed in their order."""
    centre = Elastic(alpha)
    return centre.step(c, weighted_sum([(1.0, {"g": centre.params(c) - row}) for row in pushed])["g"])


def together(
    x: Tensor, c: Tensor, lr: float, alpha: float, h: Tensor = CURVATURES, slopes: Tensor = SLOPES
) -> tuple[Tensor, Tensor]:
    """Return workers (n, 1) and centre (1,) after one synchronous round with gradients h x - slopes."""
    centre, workers = Elastic(alpha), ElasticWorker(alpha)
    state = workers.init(x)
    state = workers.learned(state, -lr * (h * workers.at(state) - slopes), lr)
    state, message = workers.message(state, 0, None)
    after = pulled(centre.init(c), message["u"], alpha)
    return workers.params(workers.adopted(state, centre.given(after))), centre.params(after)


def turn(
    x: Tensor, c: Tensor, i: int, lr: float, alpha: float, h: Tensor = CURVATURES, slopes: Tensor = SLOPES
) -> tuple[Tensor, Tensor]:
    """Return workers (n, 1) and centre (1,) after the turn of worker i."""
    one, after = together(x[i : i + 1], c, lr, alpha, h[i : i + 1], slopes[i : i + 1])
    return torch.cat([x[:i], one, x[i + 1 :]]), after


def start(count: int = 4) -> tuple[Tensor, Tensor]:
    return torch.full((count, 1), START, dtype=torch.float64), torch.full((1,), START, dtype=torch.float64)


def numbers(x: Tensor, c: Tensor) -> list[float]:
    return [*x[:, 0].tolist(), c.item()]


# ---- The traces


def test_the_synchronous_trace() -> None:
    x, c = start()
    for expected in SYNCHRONOUS["w0_w1_w2_w3_center"]:
        assert numbers(x, c) == pytest.approx(expected, rel=DIGITS)
        x, c = together(x, c, SYNCHRONOUS["lr"], SYNCHRONOUS["alpha"])


def test_the_synchronous_fixed_point() -> None:
    """The centre at the mean of the workers, worker i at (lr y_i + alpha c) / (lr h_i + alpha): not at 7/3."""
    x, c = start()
    for _ in range(4000):
        x, c = together(x, c, SYNCHRONOUS["lr"], SYNCHRONOUS["alpha"])
    assert numbers(x, c) == pytest.approx(SYNCHRONOUS["fixed_point"], rel=DIGITS)
    assert c.item() == pytest.approx(x.mean().item(), rel=1e-12)
    assert abs(c.item() - OPTIMUM) > 0.09


def test_the_trace_of_turns() -> None:
    x, c = start()
    for event, expected in enumerate(TURNS["events_0_to_8"]):
        assert numbers(x, c) == pytest.approx(expected, rel=DIGITS)
        x, c = turn(x, c, event % 4, TURNS["lr"], TURNS["alpha"])


def test_one_pull_by_hand() -> None:
    """Half of the way from 3 to 1 is 1: the worker goes to 2, and by 0.25 further; the centre goes to 2."""
    x, c = torch.tensor([3.0]), torch.tensor([1.0])
    assert pull(x, c, 0.5).tolist() == [1.0]
    centre, one = Elastic(0.5), ElasticWorker(0.5)
    state = one.learned(one.init(x), torch.tensor([0.25]), 0.1)
    after = centre.step(centre.init(c), c - x)
    assert one.params(one.adopted(state, centre.given(after))).tolist() == [2.25]
    assert centre.params(after).tolist() == [2.0]


def test_the_centre_gives_what_it_was_before_the_last_pull() -> None:
    centre = Elastic(0.5)
    state = centre.init(torch.tensor([1.0]))
    assert centre.given(state).tolist() == [1.0]
    for before, after in [(1.0, 2.0), (2.0, 2.5)]:
        state = centre.step(state, centre.params(state) - torch.tensor([3.0]))
        assert (centre.given(state).item(), centre.params(state).item()) == (before, after)


def test_a_schedule_of_learning_rates_does_not_change_the_pull() -> None:
    """Else the workers would be pulled by one amount and the centre by another."""
    centre, g = Elastic(0.5), torch.tensor([2.0])
    state = centre.init(torch.tensor([1.0]))
    assert centre.params(centre.step(state, g, 0.1)).item() == centre.params(centre.step(state, g)).item() == 0.0


# ---- What stays


@settings(deadline=None, max_examples=40)
@given(seed=seeds, count=st.integers(1, 6), alpha=st.floats(0, 1))
def test_without_learning_the_sum_of_workers_and_centre_stays(seed: int, count: int, alpha: float) -> None:
    rows = random_rows(seed, count + 1, 3)
    x, c = rows[:-1], rows[-1]
    total, still = x.sum(dim=0) + c, torch.zeros(count, 3, dtype=torch.float64)
    after = together(x, c, 0.1, alpha, still, still)
    torch.testing.assert_close(after[0].sum(dim=0) + after[1], total, rtol=1e-12, atol=1e-12)
    for i in range(count):
        x, c = turn(x, c, i, 0.1, alpha, still, still)
    torch.testing.assert_close(x.sum(dim=0) + c, total, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, count=st.integers(1, 6))
def test_the_synchronous_centre_is_sgd_of_rate_n_alpha_on_the_mean_of_models(seed: int, count: int) -> None:
    """The paper's beta is n alpha."""
    rows, alpha = random_rows(seed, count + 1, 3), 0.1
    x, c = rows[:-1], rows[-1]
    server = Sgd(count * alpha)
    expected = server.params(server.step(server.init(c), c - x.mean(dim=0)))
    found = pulled(Elastic(alpha).init(c), x, alpha)["x"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_with_one_worker_a_round_is_a_turn() -> None:
    x, c = start(1)
    h, slopes = CURVATURES[1:2], SLOPES[1:2]
    for _ in range(5):
        one, other = together(x, c, 0.05, 0.2, h, slopes), turn(x, c, 0, 0.05, 0.2, h, slopes)
        assert numbers(*one) == numbers(*other)
        x, c = one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_that_of_the_parameters(dtype: torch.dtype) -> None:
    x, c = torch.ones(4, 1, dtype=dtype), torch.zeros(1, dtype=dtype)
    kept = x.clone(), c.clone()
    still = torch.zeros(4, 1, dtype=dtype)
    assert [t.dtype for t in together(x, c, 0.1, 0.1, still, still)] == [dtype, dtype]
    assert torch.equal(x, kept[0])
    assert torch.equal(c, kept[1])
    with pytest.raises(AssertionError):
        pull(x, c.to(torch.float16), 0.1)


# ---- Where it is stable


def radius(lr: float, alpha: float, h: list[float], turns: bool) -> float:
    """Return the spectral radius of a round, or of a turn of each worker, from how it moves each number."""
    curvatures, count = torch.tensor(h, dtype=torch.float64).view(-1, 1), len(h)
    still = torch.zeros(count, 1, dtype=torch.float64)

    def cycle(flat: Any) -> Any:
        x, c = torch.from_numpy(flat[:-1].reshape(-1, 1)), torch.from_numpy(flat[-1:])
        if not turns:
            return numbers(*together(x, c, lr, alpha, curvatures, still))
        for i in range(count):
            x, c = turn(x, c, i, lr, alpha, curvatures, still)
        return numbers(x, c)

    linear = np.stack([cycle(unit) for unit in np.eye(count + 1)], axis=1)
    return float(np.abs(np.linalg.eigvals(linear)).max())


def test_the_limit_of_alpha_for_one_worker_is_the_paper_s() -> None:
    for lr in (0.0, 0.5, 1.0, 1.9):
        assert alpha_limit(lr) == pytest.approx((4 - 2 * lr) / (4 - lr), rel=1e-15)
    assert alpha_limit(0.1, curvature=9.0) == pytest.approx((4 - 1.8) / (4 - 0.9), rel=1e-15)
    assert alpha_limit(2.0) == alpha_limit(0.3, curvature=9.0) == alpha_limit(4.0) == 0.0


@pytest.mark.parametrize("lr", [0.1, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_limit_of_alpha_is_exact_in_rounds_of_equal_curvatures(workers: int, lr: float) -> None:
    limit = alpha_limit(lr, workers=workers)
    assert radius(lr, limit, [1.0] * workers, turns=False) == pytest.approx(1.0, rel=1e-12)
    assert radius(lr, 0.99 * limit, [1.0] * workers, turns=False) < 1 - 1e-5
    assert radius(lr, 1.01 * limit, [1.0] * workers, turns=False) > 1 + 1e-5


@pytest.mark.parametrize("lr", [0.1, 0.5, 1.0, 1.5])
def test_the_limit_of_alpha_is_exact_for_one_worker_s_turns(lr: float) -> None:
    limit = alpha_limit(lr)
    assert radius(lr, limit, [1.0], turns=True) == pytest.approx(1.0, rel=1e-12)
    assert radius(lr, 0.99 * limit, [1.0], turns=True) < 1 - 1e-5
    assert radius(lr, 1.01 * limit, [1.0], turns=True) > 1 + 1e-5


def test_for_several_workers_in_turn_the_limit_of_alpha_is_more_than_is_needed() -> None:
    limit = alpha_limit(1.0)
    assert radius(1.0, 1.01 * limit, [1.0] * 4, turns=True) < 1


@settings(deadline=None, max_examples=60)
@given(
    h=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=6),
    lr=st.floats(0.05, 1.9),
    part=st.floats(0.05, 0.999),
)
def test_below_the_limit_of_alpha_for_the_largest_curvature_all_is_stable(
    h: list[float], lr: float, part: float
) -> None:
    most = max(h)
    assert radius(lr, part * alpha_limit(lr, most, len(h)), h, turns=False) < 1
    assert radius(lr, part * alpha_limit(lr, most), h, turns=True) < 1


@pytest.mark.parametrize(("factor", "stable"), [(0.98, True), (1.02, False)])
def test_rounds_converge_below_the_limit_and_leave_all_bounds_above(factor: float, stable: bool) -> None:
    h = torch.ones(4, 1, dtype=torch.float64)
    x, c = start()
    for _ in range(2000):
        x, c = together(x, c, 0.5, factor * alpha_limit(0.5, workers=4), h, 0 * h)
    found = max(map(abs, numbers(x, c)))
    assert found < 1e-12 if stable else found > 1e8
