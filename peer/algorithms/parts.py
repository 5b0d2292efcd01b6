"""Which part of the parameters an algorithm gets to see: wrappers that are algorithms themselves.

`Shared` gossips some of the numbers and leaves the rest to the peer: x <- (gossiped, x + delta). `Apart` keeps running
statistics, such as batch-norm variances, out of an algorithm that may leave the range of what the peers hold; they are
averaged as they are, s <- W (s + delta), with the messages of its last exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Heard, Message, State
from peer.algorithms.wrapper import Wrapper

Span = tuple[int, int]
"""Columns from the first up to, and without, the second."""

# Names in states and messages, beside those of the algorithm inside.
_PERSONAL = "shared.personal"
_STATISTICS = "apart.statistics"
_WEIGHT = "apart.weight"
_APART = (_STATISTICS, _WEIGHT)


@dataclass(frozen=True)
class Shared(Wrapper):
    """Gossips the columns in `spans`, which are in order and apart; the others, of `size` in all, stay at the peer."""

    spans: tuple[Span, ...]
    size: int

    def init(self, x: Tensor) -> State:
        return self.inner.init(_columns(x, self.spans)) | {_PERSONAL: _columns(x, self._rest)}

    def at(self, state: State) -> Tensor:
        return self._whole(self.inner.at(_without(state, _PERSONAL)), state[_PERSONAL])

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        inner = self.inner.learned(_without(state, _PERSONAL), _columns(delta, self.spans), lr)
        return inner | {_PERSONAL: state[_PERSONAL] + _columns(delta, self._rest)}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        inner, message = self.inner.message(_without(state, _PERSONAL), k, noise)
        return inner | {_PERSONAL: state[_PERSONAL]}, message

    def update(self, state: State, k: int, heard: Heard) -> State:
        return self.inner.update(_without(state, _PERSONAL), k, heard) | {_PERSONAL: state[_PERSONAL]}

    def params(self, state: State) -> Tensor:
        return self._whole(self.inner.params(_without(state, _PERSONAL)), state[_PERSONAL])

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return self.inner.parameters_in(message, k)

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
class Apart(Wrapper):
    """Hands the first `parameters` columns to the algorithm and averages those behind them.

    Where only the columns of the mixing matrix P sum to 1, they are averaged with push-sum weights w of their own,
    s <- P (w (s + delta)) / P w: a mean of what the peers hold, whatever the weights.
    """

    parameters: int

    def init(self, x: Tensor) -> State:
        statistics = x[..., self.parameters :]
        weight = {_WEIGHT: torch.ones_like(statistics[..., :1])} if self._pushes else {}
        return self.inner.init(x[..., : self.parameters]) | {_STATISTICS: statistics} | weight

    def at(self, state: State) -> Tensor:
        return torch.cat([self.inner.at(_without(state, *_APART)), state[_STATISTICS]], dim=-1)

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        inner = self.inner.learned(_without(state, *_APART), delta[..., : self.parameters], lr)
        return inner | _only(state, *_APART) | {_STATISTICS: state[_STATISTICS] + delta[..., self.parameters :]}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        inner, message = self.inner.message(_without(state, *_APART), k, noise)
        apart = _only(state, *_APART)
        if self._is_last(k) or not self.parameters:  # without parameters the message would be empty
            weighed = state[_STATISTICS] * state[_WEIGHT] if self._pushes else state[_STATISTICS]
            message = message | apart | {_STATISTICS: weighed}
        return inner | apart, message

    def update(self, state: State, k: int, heard: Heard) -> State:
        inner = self.inner.update(_without(state, *_APART), k, _Inner(heard))
        if not self._is_last(k):
            return inner | _only(state, *_APART)
        apart = _only(heard.sum(), *_APART)
        if self._pushes:
            apart[_STATISTICS] = apart[_STATISTICS] / apart[_WEIGHT]
        return inner | apart

    def params(self, state: State) -> Tensor:
        return torch.cat([self.inner.params(_without(state, *_APART)), state[_STATISTICS]], dim=-1)

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return self.inner.parameters_in(_without(message, *_APART), k)

    @property
    def _pushes(self) -> bool:
        return self.stochastic == "column"

    def _is_last(self, k: int) -> bool:
        return k + 1 == self.exchanges


@dataclass(frozen=True)
class _Inner:
    """What the algorithm inside has heard."""

    heard: Heard

    def sum(self) -> Message:
        return _without(self.heard.sum(), *_APART)

    def edges(self) -> Edges:
        e = self.heard.edges()
        return Edges(e.receivers, e.weights, _without(e.own, *_APART), _without(e.theirs, *_APART))


def within(algorithm: Algorithm, spans: Sequence[Span] | None, parameters: int, size: int) -> Algorithm:
    """Return the algorithm for flat parameters of `size` columns, the first `parameters` of which are trained.

    `spans` are the columns to gossip, None for all.
    """
    shared = [(0, size)] if spans is None else spans
    trained = sum(min(b, parameters) - a for a, b in shared if a < parameters)
    plain = not algorithm.extrapolates and algorithm.stochastic != "column"  # push-sum divides what was learned by w
    if not plain and trained < sum(b - a for a, b in shared):
        algorithm = Apart(algorithm, trained)
    return algorithm if spans is None else Shared(algorithm, tuple(spans), size)


def _columns(x: Tensor, spans: Sequence[Span]) -> Tensor:
    return torch.cat([x[..., a:b] for a, b in spans], dim=-1) if spans else x[..., :0]


def _only(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name in names}


def _without(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}
