"""The coordinator's half: the traces of four peers and a server, limits of a fixed delay, and what theory says."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import State
from peer.algorithms.combine import weighted_sum
from peer.algorithms.easgd import Elastic
from peer.algorithms.server import (
    Adagrad,
    Adam,
    Momentum,
    Optimiser,
    Sgd,
    Staleness,
    Weighting,
    Yogi,
    fixed_delay_limit,
    staleness_distance,
    staleness_scale,
    weights,
)
from peer.checkpoint import load_latest, save
from tests.four_peers import CURVATURES, DIGITS, OPTIMUM, SLOPES, START, TRACES, gradient, numbers, random_rows, seeds

TRUTH = json.loads((Path(__file__).parent / "truth" / "truth.json").read_text(encoding="utf-8"))
SAMPLES = weights([10, 20, 30, 40])
EQUAL = weights([1, 1, 1, 1])
DELAYS = range(6)
LIMITS = [2.0, 1.0, 0.618034, 0.445042, 0.347296, 0.284630]


def vector(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def one_gradient(peer: int, w: Tensor) -> Tensor:
    """Return the gradient of one of the four losses, (1,)."""
    return CURVATURES[peer] * w - SLOPES[peer]


def gone(w: Tensor, local_steps: int = 1, lr: float = 0.1) -> list[Tensor]:
    """Return the pseudo-gradients w - w_i of the four peers, (1,) each."""
    x = w.expand(4, 1)
    for _ in range(local_steps):
        x = x - lr * gradient(x)
    return list(w - x)


def combined(terms: Sequence[Tensor], by: Sequence[float]) -> Tensor:
    """Return the weighted sum of what peers push, summed in their order."""
    return weighted_sum([(weight, {"x": term}) for weight, term in zip(by, terms, strict=True)])["x"]


def play(server: Optimiser, push: Callable[[Tensor], Tensor], rounds: int, start: float = START) -> list[float]:
    """Return the parameters at the start and after each round."""
    state = server.init(vector(start))
    found = [start]
    for _ in range(rounds):
        state = server.step(state, push(server.given(state)))
        found.append(server.params(state).item())
    return found


def update(
    server: Optimiser, state: State, pushes: Sequence[tuple[Tensor, int]], rule: Staleness = "constant"
) -> State:
    """Return the state after one update with K pushes and their staleness: step(1/K sum_k s(tau_k) u_k)."""
    scales = [staleness_scale(rule, staleness) / len(pushes) for _, staleness in pushes]
    return server.step(state, combined([push for push, _ in pushes], scales))


# ---- Weights


def test_weights_are_shares_of_the_rows_or_equal() -> None:
    assert weights([10, 30]) == [0.25, 0.75]
    assert weights([10, 30], "equal") == [0.5, 0.5]
    assert weights([3, 0, 1]) == [0.75, 0.0, 0.25]


@pytest.mark.parametrize("samples", [[], [1, -1], [0, 0]])
def test_there_are_no_weights_without_rows(samples: list[int]) -> None:
    with pytest.raises(ValueError, match="row"):
        weights(samples)


@pytest.mark.parametrize(("weighting", "equals_the_union"), [("samples", True), ("equal", False)])
def test_of_unequal_shards_the_shares_of_the_rows_give_the_gradient_of_the_union(
    weighting: Weighting, equals_the_union: bool
) -> None:
    """Mean gradients at w = 0.5 over one row and over three, and over all four together."""
    x, y, w = vector(1.0, 2.0, 3.0, 4.0), vector(3.0, 5.0, 7.0, 9.0), 0.5
    rows = x * (x * w - y)
    shards = [rows[:1].mean().view(1), rows[1:].mean().view(1)]
    found = combined(shards, weights([1, 3], weighting)).item()
    assert rows.mean().item() == -13.75
    assert found == pytest.approx(-13.75 if equals_the_union else (-2.5 - 17.5) / 2, rel=1e-15)


def test_an_unweighted_server_ends_elsewhere_when_shards_are_unequal() -> None:
    """One row (1, 3) here, three rows there: lr 0.1 times the mean curvatures 7.5 and (1 + 29/3) / 2."""
    one, three = [0], [1, 2, 3]

    def push(by: Sequence[float]) -> Callable[[Tensor], Tensor]:
        shards = one, three
        return lambda w: combined([gradient(w.expand(4, 1))[rows].mean(dim=0) for rows in shards], by)

    found = {by: play(Sgd(0.1), push(weights([1, 3], by)), 60) for by in ("samples", "equal")}
    assert found["samples"] == pytest.approx(play(Sgd(0.1), lambda w: gradient(w).mean(dim=0), 60))
    assert found["samples"][-1] == pytest.approx(OPTIMUM, rel=1e-12)
    assert found["equal"][-1] == pytest.approx((3 + 67 / 3) / (1 + 29 / 3), rel=1e-12)


FLOWER = TRACES["flower_public_expectations"]


def test_flower_s_weighted_means_of_models() -> None:
    truth = FLOWER["fedavg_weighted"]
    models = [vector(*model) for model in truth["clients"]]
    assert combined(models, weights(truth["weights"])).tolist() == pytest.approx(truth["expected"], rel=DIGITS)
    truth = FLOWER["fedavg_scalar"]
    found = combined([vector(value) for value in truth["values"]], weights(truth["weights"])).item()
    assert found == pytest.approx(float(Fraction(truth["expected"])), rel=1e-15)
    samples, losses = zip(*FLOWER["weighted_loss"]["pairs"], strict=True)
    assert np.dot(weights(samples), losses) == FLOWER["weighted_loss"]["expected"]


@pytest.mark.parametrize("case", ["fedavg_weighted", "fedavg_scalar"])
def test_a_server_of_rate_1_holds_the_weighted_mean_of_models(case: str) -> None:
    """From any start: w - 1 (w - mean) is the mean."""
    truth = FLOWER[case]
    models = [torch.tensor(model, dtype=torch.float64).view(-1) for model in truth.get("clients", truth.get("values"))]
    server, by = Sgd(1.0), weights(truth["weights"])
    state = server.init(torch.full_like(models[0], 5.0))
    state = server.step(state, combined([server.params(state) - model for model in models], by))
    expected = [float(Fraction(truth["expected"]))] if case == "fedavg_scalar" else truth["expected"]
    assert server.params(state).tolist() == pytest.approx(expected, rel=DIGITS)


# ---- Synchronous


def test_the_numbers_of_the_lecture() -> None:
    four = TRACES["lecture"]["four_workers"]
    server = Sgd(0.1)
    state = server.init(vector(START))
    found = gradient(server.params(state).expand(4, 1))
    assert found[:, 0].tolist() == four["gradients"]
    g = combined(list(found), EQUAL)
    assert g.item() == four["mean"]
    assert server.params(server.step(state, g)).item() == four["w_new"]
    single = TRACES["lecture"]["single"]
    state = server.init(vector(float(single["w"])))
    assert server.params(server.step(state, vector(single["gradient"]))).item() == pytest.approx(3.2, rel=1e-15)


def test_the_trace_of_the_mean_gradient() -> None:
    truth = numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"])
    server = Sgd(0.1)
    found = play(server, lambda w: combined(list(gradient(w.expand(4, 1))), EQUAL), len(truth) - 1)
    assert found == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(("name", "by"), [("equal", EQUAL), ("10/20/30/40", SAMPLES)])
@pytest.mark.parametrize("local_steps", [1, 2, 4, 8])
def test_federated_averaging(local_steps: int, name: str, by: list[float]) -> None:
    truth = TRACES["local_SGD_FedAvg_lr0.1"]["traces"][f"H={local_steps},weights={name}"]["w"]
    found = play(Sgd(1.0), lambda w: combined(gone(w, local_steps), by), len(truth) - 1)
    assert found == pytest.approx(truth, rel=DIGITS)


def test_with_one_local_step_models_are_gradients() -> None:
    """w - w_i = lr_task g_i: rate 1 for models is the task's rate for gradients."""
    models = play(Sgd(1.0), lambda w: combined(gone(w, lr=0.02), SAMPLES), 10)
    gradients = play(Sgd(0.02), lambda w: combined(list(gradient(w.expand(4, 1))), SAMPLES), 10)
    assert models == pytest.approx(gradients, rel=1e-13)


# ---- Optimisers


FEDOPT = TRACES["FedOpt"]["traces"]
FLOWER_ADAM = "flower_adam_(v0=0, eta*sqrt(1-b2^(r+1))/(1-b1^(r+1)), r from 1)"
FEDOPT_CASES: dict[str, tuple[str, Optimiser]] = {
    "adam paper": ("paper_adam_v0=tau^2", Adam(0.1)),
    "adam zero_start": ("v0=0_adam", Adam(0.1, variant="zero_start")),
    "adam flower": (FLOWER_ADAM, Adam(0.1, variant="flower")),
    "yogi paper": ("paper_yogi_v0=tau^2", Yogi(0.1)),
    "yogi zero_start": ("v0=0_yogi", Yogi(0.1, variant="zero_start")),
    "yogi flower": ("v0=0_yogi", Yogi(0.1, variant="flower")),
    "adagrad paper": ("paper_adagrad_v0=tau^2", Adagrad(0.1)),
    "adagrad zero_start": ("v0=0_adagrad", Adagrad(0.1, variant="zero_start")),
    "adagrad flower": ("v0=0_adagrad", Adagrad(0.1, variant="flower")),
}


@pytest.mark.parametrize("name", FEDOPT_CASES)
def test_adaptive_federated_optimisation(name: str) -> None:
    truth, optimiser = FEDOPT[FEDOPT_CASES[name][0]], FEDOPT_CASES[name][1]
    found = play(optimiser, lambda w: combined(gone(w, local_steps=2), SAMPLES), len(truth) - 1)
    assert found == pytest.approx(truth, rel=DIGITS)


def test_every_trace_of_adaptive_optimisation_has_a_variant() -> None:
    assert {name for name, _ in FEDOPT_CASES.values()} == FEDOPT.keys()
    first = combined(gone(vector(START), local_steps=2), SAMPLES)
    assert -first.item() == pytest.approx(TRACES["FedOpt"]["first_delta"], rel=1e-14)


def test_flower_s_own_numbers_for_adagrad() -> None:
    """0.1 + 0.1 * 0.5 / (sqrt(0.25) + 0.5)."""
    truth = TRACES["FedOpt"]["flower_adagrad_test"]
    server = Adagrad(truth["eta"], tau=truth["tau"], variant="flower")
    state = server.init(vector(truth["prev"]))
    models = [server.params(state) - model for model in truth["clients"]]
    state = server.step(state, combined(models, weights(truth["weights"])))
    assert server.params(state).item() == pytest.approx(truth["expected"], rel=1e-15)


# lr 0.5, beta1 0.5, beta2 0.75, tau 1, from x = 0 with g = 2 and then g = 1
HAND: dict[str, tuple[Optimiser, list[float]]] = {
    # v = 1 -> 0.75 + 1 = 1.75 -> 1.3125 + 0.25 = 1.5625; m = 1, 1
    "adam": (Adam(0.5, 0.5, 0.75, 1.0), [-0.5 / (1.75**0.5 + 1), -0.5 / 2.25]),
    # v = 1 -> 1 + 1 = 2 -> 2 - 0.25 = 1.75
    "yogi": (Yogi(0.5, 0.5, 0.75, 1.0), [-0.5 / (2**0.5 + 1), -0.5 / (1.75**0.5 + 1)]),
    # v = 1 -> 5 -> 6; m = g
    "adagrad": (Adagrad(0.5, tau=1.0), [-1 / (5**0.5 + 1), -0.5 / (6**0.5 + 1)]),
    "sgd": (Sgd(0.5), [-1.0, -0.5]),
    # b = 2, 0.5 * 2 + 1
    "momentum": (Momentum(0.5, 0.5), [-1.0, -1.0]),
}


@pytest.mark.parametrize("name", HAND)
def test_two_steps_by_hand(name: str) -> None:
    optimiser, steps = HAND[name]
    state = optimiser.init(vector(0.0))
    state = optimiser.step(state, vector(2.0))
    assert state["x"].item() == pytest.approx(steps[0], rel=1e-14)
    state = optimiser.step(state, vector(1.0))
    assert state["x"].item() == pytest.approx(sum(steps), rel=1e-14)


def test_yogi_s_first_step_from_zero_is_adam_s() -> None:
    g = random_rows(3, 5)
    one, other = (rule(0.1, variant="zero_start") for rule in (Adam, Yogi))
    x = torch.zeros(5, dtype=torch.float64)
    assert torch.equal(one.step(one.init(x), g)["v"], other.step(other.init(x), g)["v"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_is_that_of_torch(momentum: float) -> None:
    x = torch.nn.Parameter(vector(START))
    reference = torch.optim.SGD([x], lr=0.02, momentum=momentum)
    optimiser = Momentum(0.02, momentum)
    state = optimiser.init(vector(START))
    for _ in range(10):
        g = combined(list(gradient(state["x"].expand(4, 1))), EQUAL)
        x.grad = combined(list(gradient(x.detach().expand(4, 1))), EQUAL)
        reference.step()
        state = optimiser.step(state, g)
        assert state["x"].item() == pytest.approx(x.item(), rel=1e-14)


# ---- Asynchronous


def test_the_lecture_s_chain() -> None:
    """Three fetch w = 2 and push -2, -6, -10 one after the other: nobody waits, each gradient is applied whole."""
    truth = TRACES["lecture"]["async_chain"]
    server = Sgd(truth["lr"])
    state = server.init(vector(2.0))
    fetched, distances = server.params(state), []
    for staleness, (g, w) in enumerate(zip(truth["gradients"], truth["w"][1:], strict=True)):
        distances.append(staleness_distance(server.params(state), fetched).item())
        state = update(server, state, [(vector(g), staleness)])
        assert server.params(state).item() == pytest.approx(w, rel=1e-14)
    assert staleness == 2
    assert distances == pytest.approx([0.0, 0.2, 0.8], rel=1e-14)
    assert server.params(state).item() == pytest.approx(3.8, rel=1e-14)


def test_the_distance_is_euclidean_and_by_rows() -> None:
    now, fetched = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert staleness_distance(now, fetched).tolist() == [5.0, 1.0]
    assert staleness_distance(now[0], fetched[0]).item() == 5.0


def test_the_scales_of_staleness() -> None:
    assert [staleness_scale("constant", tau) for tau in (0, 1, 3)] == [1.0, 1.0, 1.0]
    assert [staleness_scale("inverse", tau) for tau in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert [staleness_scale("inverse_sqrt", tau) for tau in (0, 3, 8)] == [1.0, 0.5, 1 / 3]


def test_a_stale_gradient_is_scaled_before_the_step() -> None:
    server = Momentum(0.5, 0.5)
    state = update(server, server.init(vector(0.0)), [(vector(2.0), 3)], "inverse")
    assert server.params(state).item() == -0.25
    state = update(server, state, [(vector(0.0), 1)], "inverse")
    assert server.params(state).item() == -0.375, "the momentum remembers what was scaled"


ROUND_ROBIN = TRACES["async_PS_round_robin_4"]


def round_robin(server: Optimiser, events: int, start: Tensor, fetched: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters after each event, where worker k mod 4 pushes and then fetches, and its copies after."""
    state, copies, versions = server.init(start), list(fetched), [0] * 4
    found = [start]
    for event in range(events):
        worker = event % 4
        state = update(server, state, [(one_gradient(worker, copies[worker]), event - versions[worker])])
        copies[worker], versions[worker] = server.params(state), event + 1
        found.append(server.params(state))
    return found + copies


@pytest.mark.parametrize(("name", "lr"), [("lr0_1", 0.1), ("lr0_05", 0.05)])
def test_workers_that_take_turns(name: str, lr: float) -> None:
    truth = ROUND_ROBIN[name]
    found = round_robin(Sgd(lr), len(truth) - 1, vector(START), [vector(START)] * 4)
    assert [w.item() for w in found[: len(truth)]] == pytest.approx(truth, rel=DIGITS)


def radius_of_turns(lr: float) -> float:
    """Return the spectral radius of four events: how much they change the server's parameters and the four copies."""

    def cycle(numbers: Any) -> Any:
        start, *fetched = (vector(value) for value in numbers)
        return np.array([w.item() for w in round_robin(Sgd(lr), 4, start, fetched)[4:]])

    origin = cycle(np.zeros(5))
    linear = np.stack([cycle(unit) - origin for unit in np.eye(5)], axis=1)
    return float(np.abs(np.linalg.eigvals(linear)).max())


def test_the_spectral_radius_of_workers_that_take_turns() -> None:
    assert radius_of_turns(0.05) == pytest.approx(ROUND_ROBIN["rho_lr0_05"], rel=DIGITS)
    assert radius_of_turns(0.1) == pytest.approx(ROUND_ROBIN["rho_lr0_1"], rel=DIGITS)
    assert radius_of_turns(ROUND_ROBIN["critical_lr"]) == pytest.approx(1.0, rel=1e-8)


# ---- A fixed delay


def delayed(
    server: Optimiser,
    delay: int,
    slope: Callable[[Tensor], Tensor],
    start: Tensor,
    updates: int,
    rule: Staleness = "constant",
) -> list[Tensor]:
    """Return the parameters at first and after each update with the gradient of `delay` versions ago."""
    state = server.init(start)
    past = deque([start] * (delay + 1), maxlen=delay + 1)
    found = [start]
    for _ in range(updates):
        state = update(server, state, [(slope(past[0]), delay)], rule)
        past.append(server.params(state))
        found.append(server.params(state))
    return found


DELAYED = {name: trace for name, trace in TRACES["constant_delay_traces"].items() if name.startswith("tau")}


@pytest.mark.parametrize("name", DELAYED)
def test_the_trace_of_a_fixed_delay(name: str) -> None:
    truth = DELAYED[name]
    delay, lr = int(name[4]), float(name.split("lr=")[1])
    found = delayed(Sgd(lr), delay, lambda w: one_gradient(2, w), vector(START), 400)
    assert [w.item() for w in found[:9]] == pytest.approx(truth["w_0_to_8"], rel=DIGITS)
    assert abs(found[400].item() - OPTIMUM) == pytest.approx(truth["abs_error_after_400"], rel=1e-3)  # four digits
    assert fixed_delay_limit(delay) == pytest.approx(truth["limit"], rel=1e-12)
    assert (lr * 9 < fixed_delay_limit(delay)) is truth["stable"]


def test_the_limits_of_a_fixed_delay() -> None:
    truth = TRUTH["constant_delay_stability"]["values"]
    for name, values in truth.items():
        delay = int(name.removeprefix("tau="))
        assert fixed_delay_limit(delay) == pytest.approx(values["lr_times_curvature_limit"], rel=DIGITS)
    assert [fixed_delay_limit(delay) for delay in DELAYS] == pytest.approx(LIMITS, abs=5e-7)


@pytest.mark.parametrize("delay", range(11))
@pytest.mark.parametrize(("factor", "name"), [(0.9, "rho_at_0_9_limit"), (1.1, "rho_at_1_1_limit")])
def test_the_spectral_radius_of_a_fixed_delay(delay: int, factor: float, name: str) -> None:
    """Of the step from x_t ... x_{t-delay} to x_{t+1} ... x_{t+1-delay}, found by moving each number in turn."""
    lr = factor * fixed_delay_limit(delay)
    optimiser, linear = Sgd(lr), np.eye(delay + 1, k=-1)
    for age in range(delay + 1):
        newest, oldest = float(age == 0), float(age == delay)
        state = update(optimiser, optimiser.init(vector(newest)), [(vector(oldest), delay)])
        linear[0, age] = optimiser.params(state).item()
    truth = TRUTH["constant_delay_stability"]["values"][f"tau={delay}"][name]
    assert np.abs(np.linalg.eigvals(linear)).max() == pytest.approx(truth, rel=DIGITS)


@pytest.mark.parametrize("delay", DELAYS)
def test_a_fixed_delay_converges_below_its_limit_and_leaves_all_bounds_above(delay: int) -> None:
    """Two rows at once: lr 0.1, curvatures of 0.98 and 1.02 of the limit, the optimum at 0, from 1."""
    curvatures = fixed_delay_limit(delay) / 0.1 * torch.tensor([[0.98], [1.02]], dtype=torch.float64)
    start = torch.ones(2, 1, dtype=torch.float64)
    found = delayed(Sgd(0.1), delay, lambda x: curvatures * x, start, 20_000)
    below, above = torch.stack(found).abs().unbind(dim=1)
    assert below[-1].item() < 1e-12
    assert below.max().item() < 100
    assert bool((above > 1e8).any()), "later it may overflow"


@pytest.mark.parametrize("delay", [1, 3])
def test_a_scale_of_staleness_moves_the_limit_of_a_fixed_delay(delay: int) -> None:
    """s(tau) = 1 / (1 + tau): the limit for lr is (1 + tau) times as large."""
    factors = torch.tensor([[0.98], [1.02]], dtype=torch.float64)
    curvatures = (1 + delay) * fixed_delay_limit(delay) / 0.1 * factors
    start = torch.ones(2, 1, dtype=torch.float64)
    below, above = delayed(Sgd(0.1), delay, lambda x: curvatures * x, start, 5_000, "inverse")[-1].abs()
    assert below.item() < 1e-6
    assert above.item() > 1e6


# ---- Buffered


FEDBUFF = TRACES["FedBuff_K2"]


@pytest.mark.parametrize(("rule", "name"), [("inverse_sqrt", "w_sqrt_scaling"), ("constant", "w_no_scaling")])
def test_the_trace_of_fedbuff(rule: Staleness, name: str) -> None:
    """Models after one local step, and a peer fetches right after its push: after the step if it filled the buffer."""
    server = Sgd(1.0)
    state = server.init(vector(START))
    copies, versions, version = [server.given(state)] * 4, [0] * 4, 0
    found, ages, buffer = [START], [], []
    for worker in FEDBUFF["arrivals"]:
        staleness = version - versions[worker]
        ages.append([worker, staleness])
        buffer.append((0.1 * one_gradient(worker, copies[worker]), staleness))
        if len(buffer) == 2:
            state, version, buffer = update(server, state, buffer, rule), version + 1, []
            found.append(server.params(state).item())
        copies[worker], versions[worker] = server.given(state), version
    assert ages == FEDBUFF["client_staleness_pairs"]
    assert found == pytest.approx(FEDBUFF[name], rel=DIGITS)


def test_a_buffer_makes_one_step_of_momentum() -> None:
    server = Momentum(1.0, 0.5)
    state = update(server, server.init(vector(10.0)), [(vector(g), 0) for g in (3.0, 6.0, 9.0)])
    assert server.params(state).item() == 4.0, "10 - (3 + 6 + 9) / 3"
    state = update(server, state, [(vector(0.0), 0)] * 3)
    assert server.params(state).item() == 1.0, "and then the half of 6 by momentum"


def test_a_buffer_of_stale_updates_makes_a_shorter_step() -> None:
    """(4 / 2 + 4 / 1) / 2: the scales do not have to sum to 1."""
    server = Sgd(1.0)
    state = update(server, server.init(vector(0.0)), [(vector(4.0), 3), (vector(4.0), 0)], "inverse_sqrt")
    assert server.params(state).item() == -3.0


@pytest.mark.parametrize("local_steps", [1, 4])
def test_a_buffer_for_all_without_staleness_is_federated_averaging(local_steps: int) -> None:
    server = Sgd(1.0)
    state, found = server.init(vector(START)), [START]
    for _ in range(5):
        pushes = [(pushed, 0) for pushed in gone(server.given(state), local_steps)]
        state = update(server, state, pushes, "inverse_sqrt")
        found.append(server.params(state).item())
    truth = TRACES["local_SGD_FedAvg_lr0.1"]["traces"][f"H={local_steps},weights=equal"]["w"]
    assert found == pytest.approx(truth, rel=DIGITS)


# ---- A schedule


@pytest.mark.parametrize("name", FEDOPT_CASES)
def test_a_factor_multiplies_the_learning_rate_of_its_step_and_no_other(name: str) -> None:
    """Steps of rates 0.1, 0.05 and 0.1, against the same optimiser with these rates."""
    optimiser = FEDOPT_CASES[name][1]
    half = replace(optimiser, lr=0.05)  # type: ignore[type-var]
    g = random_rows(8, 4, 3)
    one = other = optimiser.init(g[0])
    one = optimiser.step(optimiser.step(optimiser.step(one, g[1]), g[2], 0.5), g[3], 1.0)
    other = optimiser.step(half.step(optimiser.step(other, g[1]), g[2]), g[3])
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(tensor, other[key], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("optimiser", "after"), [(Sgd(0.1), 1.0), (Momentum(0.1, 0.5), 0.9)], ids=["sgd", "momentum"])
def test_a_factor_of_zero_leaves_the_parameters_where_they_are(optimiser: Optimiser, after: float) -> None:
    """And the momentum still hears the gradient: a schedule does not scale what arrives."""
    state = optimiser.step(optimiser.init(vector(1.0)), vector(2.0), 0.0)
    assert optimiser.params(state).item() == 1.0
    state = optimiser.step(state, vector(0.0))
    assert optimiser.params(state).item() == pytest.approx(after, rel=1e-15)


# ---- What all have in common


EVERY: dict[str, Optimiser] = {
    **{f"{name}, {optimiser}": optimiser for name, (_, optimiser) in FEDOPT_CASES.items()},
    "sgd": Sgd(0.1),
    "momentum": Momentum(0.1),
    "elastic": Elastic(0.1),
}
ALL_SERVERS = pytest.mark.parametrize("server", EVERY.values(), ids=EVERY.keys())


@ALL_SERVERS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_everything_but_a_count_has_the_dtype_of_the_parameters(server: Optimiser, dtype: torch.dtype) -> None:
    state = server.init(torch.ones(3, dtype=dtype))
    for staleness in range(4):
        state = update(server, state, [(torch.full((3,), 0.5, dtype=dtype), staleness)], "inverse")
        assert {name: t.dtype for name, t in state.items()} == {
            name: torch.int64 if name == "steps" else dtype for name in state
        }
        assert bool(torch.isfinite(server.params(state)).all())
        assert server.given(state).dtype == dtype


@ALL_SERVERS
@settings(deadline=None, max_examples=10)
@given(seed=seeds, count=st.integers(1, 4))
def test_rows_are_servers(server: Optimiser, seed: int, count: int) -> None:
    """Rows (n, d), or a part of the parameters, as one of several coordinators holds it, go where they would alone."""
    found = random_rows(seed, 7, count, 3)
    together = server.init(found[0])
    single = [server.init(x) for x in found[0]]
    part = server.init(found[0, :, :2])
    for pushed in found[1:]:
        together = server.step(together, pushed, 0.7)
        single = [server.step(state, g, 0.7) for state, g in zip(single, pushed, strict=True)]
        part = server.step(part, pushed[:, :2], 0.7)
        for look in (server.params, server.given):
            x = look(together)
            torch.testing.assert_close(torch.stack([look(s) for s in single]), x, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(look(part), x[:, :2], rtol=1e-12, atol=1e-12)


@ALL_SERVERS
def test_what_was_given_or_fetched_stays(server: Optimiser) -> None:
    """A daemon sends from a tensor's own memory, while the next update is applied."""
    start = random_rows(1, 4)
    state = server.init(start)
    kept = [(start, start.clone())]
    for g in random_rows(2, 6, 4):
        before = state
        kept += [(g, g.clone()), *((t, t.clone()) for t in before.values())]
        state = server.step(state, g)
    assert all(torch.equal(t, then) for t, then in kept)


@ALL_SERVERS
def test_before_the_first_step_workers_are_given_the_start(server: Optimiser) -> None:
    start = random_rows(3, 4)
    assert torch.equal(server.given(server.init(start)), start)
    assert torch.equal(server.params(server.init(start)), start)


@ALL_SERVERS
def test_what_does_not_fit_is_refused(server: Optimiser) -> None:
    state = server.init(torch.zeros(3))
    for wrong in (torch.zeros(3, dtype=torch.float64), torch.zeros(1), torch.zeros(3, 3)):
        with pytest.raises(AssertionError):
            server.step(state, wrong)


@ALL_SERVERS
def test_a_state_that_was_written_down_goes_on_as_it_would_have(server: Optimiser, tmp_path: Path) -> None:
    """All that changes is in the state: its tensors are a checkpoint."""
    found = random_rows(5, 6, 3)
    state = server.init(found[0])
    for g in found[1:3]:
        state = server.step(state, g)
    save(tmp_path, 2, state, {}, keep=1)
    read = load_latest(tmp_path)
    assert read is not None
    again: State = read.tensors
    for g in found[3:]:
        state, again = server.step(state, g), server.step(again, g)
    assert torch.equal(server.params(state), server.params(again))
    assert torch.equal(server.given(state), server.given(again))
