"""Which part of the parameters an algorithm gets to see: wrappers that are algorithms themselves.

`Shared` gossips some of the numbers and leaves the rest to the peer: x <- (gossiped, x + delta). `Apart` keeps running
statistics, such as batch-norm variances, out of an algorithm that extrapolates; they are averaged as they are,
s <- W (s + delta), with the messages of its last exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Heard, Message, State

Span = tuple[int, int]
"""Columns from the first up to, and without, the second."""

_PERSONAL = "personal"
_STATISTICS = "statistics"


@dataclass(frozen=True)
class _Wrapper:
    """What the algorithm inside says of itself holds for the whole."""

    inner: Algorithm

    @property
    def stochastic(self) -> Literal["doubly", "row", "column"]:
        return self.inner.stochastic

    @property
    def absent(self) -> Literal["keep_own", "wait", "resync", "count"]:
        return self.inner.absent

    @property
    def exchanges(self) -> int:
        return self.inner.exchanges

    @property
    def scope(self) -> Literal["peer", "edge"]:
        return self.inner.scope

    @property
    def extrapolates(self) -> bool:
        return self.inner.extrapolates

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return self.inner.parameters_in(_without(message, _STATISTICS), k)


@dataclass(frozen=True)
class Shared(_Wrapper):
    """Gossips the columns in `spans`, which are in order and apart; the others, of `size` in all, stay at the peer."""

    spans: tuple[Span, ...]
    size: int

    def init(self, x: Tensor) -> State:
        return self.inner.init(_columns(x, self.spans)) | {_PERSONAL: _columns(x, self._rest)}

    def at(self, state: State) -> Tensor:
        return self._whole(self.inner.at(state), state[_PERSONAL])

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        inner = self.inner.learned(_without(state, _PERSONAL), _columns(delta, self.spans), lr)
        return inner | {_PERSONAL: state[_PERSONAL] + _columns(delta, self._rest)}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        inner, message = self.inner.message(_without(state, _PERSONAL), k, noise)
        return inner | {_PERSONAL: state[_PERSONAL]}, message

    def update(self, state: State, k: int, heard: Heard) -> State:
        return self.inner.update(_without(state, _PERSONAL), k, heard) | {_PERSONAL: state[_PERSONAL]}

    def params(self, state: State) -> Tensor:
        return self._whole(self.inner.params(state), state[_PERSONAL])

    @property
    def _rest(self) -> tuple[Span, ...]:
        edges = [0, *(edge for span in self.spans for edge in span), self.size]
        return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)

    def _whole(self, shared: Tensor, personal: Tensor) -> Tensor:
        whole = shared.new_empty((*shared.shape[:-1], self.size))
        for part, spans in ((shared, self.spans), (personal, self._rest)):
            offset = 0
            for a, b in spans:
                whole[..., a:b] = part[..., offset : offset + b - a]
                offset += b - a
        return whole


@dataclass(frozen=True)
class Apart(_Wrapper):
    """Hands the first `parameters` columns to the algorithm and averages those behind them."""

    parameters: int

    def init(self, x: Tensor) -> State:
        return self.inner.init(x[..., : self.parameters]) | {_STATISTICS: x[..., self.parameters :]}

    def at(self, state: State) -> Tensor:
        return torch.cat([self.inner.at(_without(state, _STATISTICS)), state[_STATISTICS]], dim=-1)

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        inner = self.inner.learned(_without(state, _STATISTICS), delta[..., : self.parameters], lr)
        return inner | {_STATISTICS: state[_STATISTICS] + delta[..., self.parameters :]}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        inner, message = self.inner.message(_without(state, _STATISTICS), k, noise)
        statistics = state[_STATISTICS]
        if k + 1 == self.exchanges:
            message = message | {_STATISTICS: statistics}
        return inner | {_STATISTICS: statistics}, message

    def update(self, state: State, k: int, heard: Heard) -> State:
        inner = self.inner.update(_without(state, _STATISTICS), k, _Inner(heard))
        is_last = k + 1 == self.exchanges
        return inner | {_STATISTICS: heard.sum()[_STATISTICS] if is_last else state[_STATISTICS]}

    def params(self, state: State) -> Tensor:
        return torch.cat([self.inner.params(_without(state, _STATISTICS)), state[_STATISTICS]], dim=-1)


@dataclass(frozen=True)
class _Inner:
    """What the algorithm inside has heard."""

    heard: Heard

    def sum(self) -> Message:
        return _without(self.heard.sum(), _STATISTICS)

    def edges(self) -> Edges:
        e = self.heard.edges()
        return Edges(e.receivers, e.weights, _without(e.own, _STATISTICS), _without(e.theirs, _STATISTICS))


def within(algorithm: Algorithm, spans: Sequence[Span] | None, parameters: int, size: int) -> Algorithm:
    """Return the algorithm for flat parameters of `size` columns, the first `parameters` of which are trained.

    `spans` are the columns to gossip, None for all.
    """
    shared = [(0, size)] if spans is None else spans
    trained = sum(min(b, parameters) - a for a, b in shared if a < parameters)
    if algorithm.extrapolates and trained < sum(b - a for a, b in shared):
        algorithm = Apart(algorithm, trained)
    return algorithm if spans is None else Shared(algorithm, tuple(spans), size)


def _columns(x: Tensor, spans: Sequence[Span]) -> Tensor:
    return torch.cat([x[..., a:b] for a, b in spans], dim=-1) if spans else x[..., :0]


def _without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}
