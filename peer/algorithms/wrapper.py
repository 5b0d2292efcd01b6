"""An algorithm around another one, which says of itself what the one inside says."""

from dataclasses import dataclass
from typing import Literal

from peer.algorithms.algorithm import Algorithm


@dataclass(frozen=True)
class Wrapper:
    """The settings of the algorithm inside; who wraps it adds the functions."""

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
