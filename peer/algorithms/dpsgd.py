"""D-PSGD: decentralised parallel stochastic gradient descent, in both orders.

Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?", algorithm 1, combines and then
adapts. Adapt-then-combine is the order of diffusion strategies, Sayed 2014, "Adaptation, Learning, and Optimization
over Networks", section 7. Both take the gradient at x_i:

    atc    x_i <- sum_j W_ij (x_j - lr g_j(x_j))      (the default)
    cta    x_i <- sum_j W_ij x_j - lr g_i(x_i)        (Lian et al.)

atc is the default since it stands larger learning rates and mixes what was just learned. W should be doubly
stochastic; with rows that sum to 1 and columns that do not, the limit is a weighted mean instead of the mean.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.algorithms.algorithm import Heard, Message, State


@dataclass(frozen=True)
class AdaptThenCombine:
    """x <- W (x - lr g)."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = False

    def init(self, x: Tensor) -> State:
        return {"x": x}

    def at(self, state: State) -> Tensor:
        return state["x"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"] + delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"]}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]


@dataclass(frozen=True)
class CombineThenAdapt:
    """x <- W x - lr g."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True  # what was found at x is added to another point, W x

    def init(self, x: Tensor) -> State:
        return {"x": x, "delta": torch.zeros_like(x)}

    def at(self, state: State) -> Tensor:
        return state["x"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return state | {"delta": delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        return state | {"x": heard.sum()["x"] + state["delta"]}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]
