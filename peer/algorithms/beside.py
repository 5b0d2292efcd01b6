"""The peer's half beside a coordinator, and in a ring: what it pushes, and what it makes of what it is given.

    Pushing          trains from the parameters w that it was given, pushes u = -delta, goes on from the next ones
    ElasticWorker    keeps parameters x of its own and pushes them; then x <- x - alpha (x - c) + delta, see easgd.py
    Member           trains to x + delta, says so, and goes on from the mean of all

These are algorithms, row-wise as all are, that mix nothing: no message of a peer gets to another peer, so that `update`
is never called. `adopted` takes its place. u points uphill, as a gradient does: with one plain local step of rate 1 it
is the gradient itself.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Heard, Message, State
from peer.algorithms.easgd import pull


class Beside(Algorithm, Protocol):
    """An algorithm of a peer that hears no other peer."""

    def adopted(self, state: State, given: Tensor) -> State:
        """Return the state after the peer was given parameters, (..., d), or (d,) for all rows: the coordinator's, or
        the mean of all members."""
        ...


class _HearsNoPeer:
    """What the three have in common: the parameters are in the state as "x", and training starts there."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = False

    def init(self, x: Tensor) -> State:
        return {"x": x}

    def at(self, state: State) -> Tensor:
        return state["x"]

    def params(self, state: State) -> Tensor:
        return state["x"]

    def update(self, state: State, k: int, heard: Heard) -> State:
        raise AssertionError("beside a coordinator nothing is mixed: what is given is adopted")


@dataclass(frozen=True)
class Pushing(_HearsNoPeer):
    """A worker whose parameters are the coordinator's: of its own it has only what it learned last."""

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"], "u": -delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        """Return {"u": -delta}; zeros where nothing was learned since parameters were given."""
        return state, {"u": state["u"] if "u" in state else torch.zeros_like(state["x"])}

    def adopted(self, state: State, given: Tensor) -> State:
        return self.init(_like(state["x"], given))

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ElasticWorker(_HearsNoPeer):
    """A worker of EASGD. What it pushes are its parameters from before its local steps.

    Behind the first `trainable` columns, None for all, are running statistics, of which it pushes, and pulls, what they
    are after the local steps: s + delta - alpha (s + delta - c) stays between what there was, as a variance must.
    """

    alpha: float
    trainable: int | None = None

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        """Return the state with the x that is pushed and pulled, and the delta that is added then."""
        if self.trainable is None or self.trainable == delta.shape[-1]:
            return state | {"delta": delta}
        later = delta.clone()
        later[..., : self.trainable] = 0
        return {"x": state["x"] + later, "delta": delta - later}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"u": state["x"]}

    def adopted(self, state: State, given: Tensor) -> State:
        """Return x - alpha (x - c) + delta, c being the centre as it was when it was pulled; without local steps to
        be answered, at the start, the state as it is."""
        if "delta" not in state:
            return state
        x = state["x"]
        return {"x": x - pull(x, _like(x, given), self.alpha) + state["delta"]}

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["u"]


@dataclass(frozen=True)
class Member(_HearsNoPeer):
    """A member of a ring all-reduce."""

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"] + delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"]}

    def adopted(self, state: State, given: Tensor) -> State:
        return self.init(_like(state["x"], given))

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"]


def _like(x: Tensor, given: Tensor) -> Tensor:
    """Return what was given, (..., d) or (d,), in the shape of x. Torch would cast, and stretch (1,), silently."""
    assert x.dtype == given.dtype, f"{x.dtype} and {given.dtype}"
    assert x.shape[-1] == given.shape[-1], f"{tuple(x.shape)} and {tuple(given.shape)}"
    return given.expand(x.shape)
