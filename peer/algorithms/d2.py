"""D2: D-PSGD that remembers its last step, and so drops the part of the error that comes from different shards.

Tang et al. 2018, "D2: Decentralized Training over Decentralized Data", algorithm 1. With g_t the gradients at x_t:

    x_1     = W (x_0 - lr g_0)
    x_(t+1) = W (2 x_t - x_(t-1) - lr g_t + lr g_(t-1))

W must be symmetric and doubly stochastic, the same in every round, with its smallest eigenvalue not below -1/3. In a
mode of W with eigenvalue l, where lr times the curvature of the losses is c, the iteration is stable if and only if
l > -1 / (3 - 2 c): below -1/3 it diverges once lr is small. At -1/3 exactly, the ring of even length, it converges
where the losses are curved. The difference of two steps vanishes at the optimum only if both are plain ones of the
same size: several local steps, momentum and learning rates that change are refused.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from peer.algorithms.algorithm import Heard, Message, State

LAMBDA_MIN = -1 / 3
"""What the smallest eigenvalue of W must not be below."""


@dataclass(frozen=True)
class D2:
    """x <- W (x + step), where step is how far x came, plus delta, minus the delta before."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True

    def init(self, x: Tensor) -> State:
        return {"x": x, "adapted": x, "adapted_before": x}  # x_(-1) = x_0 and g_(-1) = 0 make the first step D-PSGD's

    def at(self, state: State) -> Tensor:
        return state["x"]

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"], "adapted": state["x"] + delta, "adapted_before": state["adapted"]}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["adapted"] + (state["x"] - state["adapted_before"])}

    def update(self, state: State, k: int, heard: Heard) -> State:
        return state | {"x": heard.sum()["x"]}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]
