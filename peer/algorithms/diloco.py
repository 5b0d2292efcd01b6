"""DiLoCo: many local steps, then one step of an outer optimiser on how far the peers have come.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1. A round is H
local steps from the anchor a to x; W is the mean of all, or that of the neighbours:

    d <- a - W x,    b <- momentum b + d,    a <- a - lr (d + momentum b)        (Nesterov, the default)
                                             a <- a - lr b                       (heavy ball)

in the form that torch.optim.SGD has. Outer rate 1 without momentum is local SGD (FedAvg) over all, and D-PSGD, adapt
then combine, over neighbours. W should be doubly stochastic. What the local optimiser keeps, such as momentum, stays
at the peer.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.algorithms.algorithm import Heard, Message, State


@dataclass(frozen=True)
class DiLoCo:
    """a <- a - lr (d + momentum b) with d = a - W x and b <- momentum b + d."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True

    def init(self, x: Tensor) -> State:
        return {"anchor": x, "momentum": torch.zeros_like(x), "x": x}

    def at(self, state: State) -> Tensor:
        return state["anchor"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return state | {"x": state["anchor"] + delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        outer = state["anchor"] - heard.sum()["x"]
        momentum = self.momentum * state["momentum"] + outer
        step = outer + self.momentum * momentum if self.nesterov else momentum
        return state | {"anchor": state["anchor"] - self.lr * step, "momentum": momentum}

    def params(self, state: State) -> Tensor:
        return state["anchor"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]
