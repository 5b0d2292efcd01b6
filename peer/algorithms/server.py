"""The coordinator's half: what it does with what the peers push.

A push u points uphill: it is subtracted. n_i are rows, p_i the weights, w_i = w + delta_i what peer i has made of the
parameters w by its local steps:

    gradients    u_i = g_i                  FedSGD with sgd and the task's lr
    models       u_i = w - w_i = -delta_i   (the pseudo-gradient of Reddi et al. 2021): FedAvg with sgd and lr = 1
    p_i          n_i / N (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
                 Data"), or 1 / count
    then         g = sum_i p_i s(tau_i) u_i,    w <- w - lr step(g)

tau_i are the updates that have overtaken push i, and s their scale, see `staleness_scale`; a push of its own round has
tau = 0. How many pushes make an update is not said here: all of a round, each one for itself with p = 1, or K of them
with p = 1 / K. The last is FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation",
algorithm 1. It divides by K and not by the sum of the scales, so that stale pushes make a shorter step.

An optimiser says how a step is made. Its instances hold settings only, as those of an algorithm do; all that changes
is in the state, where tensors end in the parameter axis and have the dtype of the parameters, but for a count. So a
copy of the state's tensors is a checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin, sqrt
from typing import Literal, Protocol

import torch
from torch import Tensor

from peer.algorithms.algorithm import State

Weighting = Literal["samples", "equal"]
Staleness = Literal["constant", "inverse", "inverse_sqrt"]
Variant = Literal["paper", "zero_start", "flower"]


class Optimiser(Protocol):
    """How one step is made, and what is made of it. No step changes a tensor of the state before."""

    def init(self, x: Tensor) -> State:
        """Return the state before the first step from the initial parameters, (..., d)."""
        ...

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        """Return the state after one step downhill of g, (..., d); a schedule's `factor` multiplies the learning
        rate."""
        ...

    def params(self, state: State) -> Tensor:
        """Return the coordinator's parameters, (..., d)."""
        ...

    def given(self, state: State) -> Tensor:
        """Return what workers are given, (..., d)."""
        ...


# ---- What arrives: its weight, its age


def weights(samples: Sequence[int], weighting: Weighting = "samples") -> list[float]:
    """Return the weight of each peer from its number of rows: n_i / N, or for "equal" 1 / count. They sum to 1.

    With n_i / N the weighted sum of mean gradients is the mean gradient over the union of the rows. Raises ValueError
    where nobody is there, a number is negative, or nobody has a row to be weighted by.
    """
    if not samples or min(samples) < 0:
        raise ValueError(f"no weights for {list(samples)} rows")
    if weighting == "equal":
        return [1 / len(samples)] * len(samples)
    total = sum(samples)
    if total == 0:
        raise ValueError("nobody has a row to be weighted by")
    return [count / total for count in samples]


def staleness_scale(rule: Staleness, staleness: int) -> float:
    """Return s(tau): 1, 1 / (1 + tau) or 1 / sqrt(1 + tau), tau = `staleness` being versions, from 0 on.

    Xie et al. 2019, "Asynchronous Federated Optimization": the polynomial (1 + tau)^-a with a = 0, 1 and 1/2.
    """
    assert staleness >= 0, staleness
    match rule:
        case "constant":
            return 1.0
        case "inverse":
            return 1 / (1 + staleness)
        case "inverse_sqrt":
            return 1 / sqrt(1 + staleness)


def staleness_distance(now: Tensor, fetched: Tensor) -> Tensor:
    """Return how far the parameters, (..., d), have gone since they were fetched: ||now - fetched||, (...)."""
    distance: Tensor = torch.linalg.vector_norm(now - fetched, dim=-1)
    return distance


def fixed_delay_limit(delay: int) -> float:
    """Return the limit of lr times curvature below which sgd with gradients of a fixed age converges on a quadratic.

    x_{t+1} = x_t - lr h (x_{t-delay} - x*) has the characteristic z^(delay+1) - z^delay + lr h = 0, whose roots lie in
    the unit circle while 0 < lr h < 2 sin(pi / (2 (2 delay + 1))): 2, 1, 0.618 ... Levin and May 1976, "A note on
    difference-delay equations". An s(tau) multiplies lr, and so the limit for lr by 1 / s(delay).
    """
    assert delay >= 0, delay
    return 2 * sin(pi / (2 * (2 * delay + 1)))


# ---- How a step is made


class _Held:
    """The parameters are in the state as "x", and workers are given them as they are."""

    def params(self, state: State) -> Tensor:
        return state["x"]

    def given(self, state: State) -> Tensor:
        return state["x"]


@dataclass(frozen=True)
class Sgd(_Held):
    """x <- x - lr g."""

    lr: float

    def init(self, x: Tensor) -> State:
        return {"x": x}

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        check_alike(state["x"], g)
        return state | {"x": torch.sub(state["x"], g, alpha=self.lr * factor)}


@dataclass(frozen=True)
class Momentum(_Held):
    """b <- momentum b + g, x <- x - lr b: the heavy ball, in the form that torch.optim.SGD has.

    With models it is FedAvgM: Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification". Flower's has the same form.
    """

    lr: float
    momentum: float = 0.9

    def init(self, x: Tensor) -> State:
        return {"x": x, "momentum": torch.zeros_like(x)}

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        check_alike(state["x"], g)
        momentum = self.momentum * state["momentum"] + g
        return state | {"x": torch.sub(state["x"], momentum, alpha=self.lr * factor), "momentum": momentum}


@dataclass(frozen=True)
class _Adaptive(_Held, ABC):
    """m <- beta1 m + (1 - beta1) g, v <- second(v, g^2), x <- x - lr m / (sqrt(v) + tau), with m = 0 at first.

    Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2, where g is -Delta. `tau` is how adaptive it is:
    the smaller, the more. By `variant`:

        paper         v = tau^2 at first, and no bias correction
        zero_start    v = 0 at first
        flower        v = 0 at first, as in Flower's FedAdam, FedYogi and FedAdagrad; its FedAdam alone multiplies lr
                      by sqrt(1 - beta2^(r+1)) / (1 - beta1^(r+1)) in its r-th step, r = 1, 2 ...
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    variant: Variant = "paper"

    def init(self, x: Tensor) -> State:
        v = torch.full_like(x, self.tau**2 if self.variant == "paper" else 0.0)
        return {"x": x, "m": torch.zeros_like(x), "v": v}

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        check_alike(state["x"], g)
        m = self.beta1 * state["m"] + (1 - self.beta1) * g
        v = self.second(state["v"], g * g)
        x = torch.sub(state["x"], m / (v.sqrt() + self.tau), alpha=self.rate(state) * factor)
        return state | {"x": x, "m": m, "v": v}

    @abstractmethod
    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the second moment, (..., d), from the one before and g^2."""

    def rate(self, state: State) -> float:
        """Return the learning rate of this step, without a schedule's factor."""
        return self.lr


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) g^2. With `variant` "flower" its state has a count of the steps."""

    def init(self, x: Tensor) -> State:
        state = super().init(x)
        return state | {"steps": _no_count()} if self.variant == "flower" else state

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        counted = {"steps": state["steps"] + 1} if self.variant == "flower" else {}
        return super().step(state | counted, g, factor)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared

    def rate(self, state: State) -> float:
        if self.variant != "flower":
            return self.lr
        exponent = int(state["steps"]) + 1
        return self.lr * sqrt(1 - self.beta2**exponent) / (1 - self.beta1**exponent)


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) g^2 sign(v - g^2)."""

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v <- v + g^2. beta2 is not used, and beta1 is 0, as in the paper's experiments."""

    beta1: float = 0.0

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared


def check_alike(x: Tensor, g: Tensor) -> None:
    """Refuse what is not of the parameters' shape and dtype: torch would broadcast and cast silently."""
    assert x.shape == g.shape, f"{tuple(x.shape)} and {tuple(g.shape)}"
    assert x.dtype == g.dtype, f"{x.dtype} and {g.dtype}"


def _no_count() -> Tensor:
    """Return a count of zero, (1,): an integer, and on the CPU, as Python reads it."""
    return torch.zeros(1, dtype=torch.int64)
