"""Stochastic gradient push: D-PSGD on directed graphs, exact in the mean though nobody knows who hears them best.

Assran et al. 2019, "Stochastic Gradient Push for Distributed Deep Learning", algorithm 1, on the push-sum of Kempe,
Dobra & Gehrke 2003, "Gossip-Based Computation of Aggregate Information", protocol 3. Each peer splits what it has
over itself and its listeners, so it is the columns of P that sum to 1; the push-sum weight w is split the same way
and tells how much of the whole a peer holds:

    x <- P (x - lr g(z)),    w <- P w,    z = x / w

The sums of x and of w over the peers stay what they are, so the limit of z is the mean. P may change from round to
round. What travels are cumulative counters (see `counters.py`): a message that is lost comes with the next one.
On a doubly stochastic W, w stays 1 and this is D-PSGD, adapt then combine.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.algorithms.algorithm import Heard, Message, State


@dataclass(frozen=True)
class PushSum:
    """x <- P (x - lr g(x / w)), w <- P w."""

    stochastic: Literal["column"] = "column"
    absent: Literal["count"] = "count"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = False

    def init(self, x: Tensor) -> State:
        return {"x": x, "w": torch.ones_like(x[..., :1])}

    def at(self, state: State) -> Tensor:
        return state["x"] / state["w"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return state | {"x": state["x"] + delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"], "w": state["w"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        return heard.sum()

    def params(self, state: State) -> Tensor:
        return state["x"] / state["w"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"] / message["w"]
