"""Gradient tracking: each peer follows the mean of all gradients, so that what it minimises is the mean loss.

Nedic, Olshevsky & Shi 2017, "Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs"
(DIGing, equation 3); the adapt-then-combine order is that of Xu et al. 2015, "Augmented Distributed Gradient Methods",
and of Di Lorenzo & Scutari 2016, "NEXT". With g_i the gradient at x_i, and y_i = g_i(x_i) at the start:

    atc      x <- W (x - lr y),    y <- W (y + g(x new) - g(x))        (the default; two exchanges a round)
    diging   x <- W x - lr y,      y <- W y + g(x new) - g(x)          (one exchange of twice the size)

The sum of y over the peers is the sum of their gradients after every round. atc is the default since it stands larger
learning rates, as with D-PSGD. W must be doubly stochastic; it may change from round to round.

A gradient is what one plain step has found, -delta / lr: several local steps, or momentum, would track another thing
than the gradient, and the peers would agree on another point than the optimum, or on none. They are refused.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.algorithms.algorithm import Heard, Message, State


@dataclass(frozen=True)
class AdaptThenCombine:
    """x <- W (x - lr y), y <- W (y + g(x new) - g(x)).

    A round begins with the gradient at x, so its first exchange ends the update of y, and the second one is that of x.
    """

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 2
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True

    def init(self, x: Tensor) -> State:
        none = torch.zeros_like(x[..., :1])
        return {"x": x, "y": torch.zeros_like(x), "gradient": torch.zeros_like(x), "lr": none, "begun": none}

    def at(self, state: State) -> Tensor:
        return state["x"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return _tracked(state, delta, lr)

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"y": state["y"]} if k == 0 else {"x": state["x"] - state["lr"] * state["y"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        if k == 1:
            return state | {"x": heard.sum()["x"]}
        y = torch.where(state["begun"] > 0, heard.sum()["y"], state["y"])  # at the start y is the own gradient
        return state | {"y": y, "begun": torch.ones_like(state["begun"])}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"] if k == 1 else None


@dataclass(frozen=True)
class Diging:
    """x <- W x - lr y, y <- W y + g(x new) - g(x)."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True

    def init(self, x: Tensor) -> State:
        none = torch.zeros_like(x)
        return {"x": x, "y": none, "gradient": none, "lr": torch.zeros_like(x[..., :1])}

    def at(self, state: State) -> Tensor:
        return state["x"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return _tracked(state, delta, lr)

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"], "y": state["y"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        total = heard.sum()
        return state | {"x": total["x"] - state["lr"] * state["y"], "y": total["y"]}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]


def gradient_of(delta: Tensor, lr: float) -> Tensor:
    """Return the gradient, (..., d), of one plain step that added `delta` at rate lr; 0 at rate 0, which tells none."""
    return delta / -lr if lr > 0 else torch.zeros_like(delta)


def _tracked(state: State, delta: Tensor, lr: float) -> State:
    """Add to y what the gradient has changed by."""
    gradient = gradient_of(delta, lr)
    y = state["y"] + gradient - state["gradient"]
    return state | {"y": y, "gradient": gradient, "lr": torch.full_like(state["lr"], lr)}
