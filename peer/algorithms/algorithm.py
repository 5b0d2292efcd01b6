"""What an algorithm is: row-wise functions around one weighted sum.

Tensors end in the parameter axis: shape (d,) at one peer, (n, d) for n peers at once. Broadcasting does the rest,
so the maths is written once for the daemons and for both engines of the simulator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

State = dict[str, Tensor]
"""Named tensors of shape (..., m); m is 1 for a scalar per peer, such as a push-sum weight."""

Message = dict[str, Tensor]
"""What one peer sends in one exchange: named tensors of shape (..., m)."""


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return how many bytes of numbers a state or a message has."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


@dataclass(frozen=True)
class Edges:
    """What came over each edge, sorted by receiver, then sender; a peer's own message is no edge.

    `receivers` (E,) are the rows that heard, all 0 at a single peer; `weights` (E, 1); `own` and `theirs` hold
    tensors (E, m): the receiver's message and the sender's.
    """

    receivers: Tensor
    weights: Tensor
    own: Message
    theirs: Message


class Heard(Protocol):
    """What has been heard in one exchange, the own message included."""

    def sum(self) -> Message:
        """Return the weighted sum of the messages, summed in node order."""
        ...

    def edges(self) -> Edges:
        """Return the messages edge by edge, for robust and per-edge rules."""
        ...


class Algorithm(Protocol):
    """One way to train together. An instance holds settings only; all that changes is in the state."""

    @property
    def stochastic(self) -> Literal["doubly", "row", "column"]:
        """What it needs of the mixing matrix so that its limit is the mean."""
        ...

    @property
    def absent(self) -> Literal["keep_own", "wait", "resync", "count"]:
        """What a missing neighbour means: its weight goes to the own message; or the round waits; or the edge drops
        out and starts again with a full message; or what it gave comes with its next message, as a counter."""
        ...

    @property
    def exchanges(self) -> int:
        """Messages per round."""
        ...

    @property
    def scope(self) -> Literal["peer", "edge"]:
        """Whether state and messages are per peer, (n, m), or per edge, (E, m)."""
        ...

    @property
    def extrapolates(self) -> bool:
        """Whether it can leave the range of what the peers hold: with momentum, with differences, or by adding what was
        found at one place to another. What must not, running statistics such as variances, is then averaged apart."""
        ...

    def init(self, x: Tensor) -> State:
        """Return the state before round 0 from the initial parameters, (..., d)."""
        ...

    def at(self, state: State) -> Tensor:
        """Return the parameters from which local training starts, (..., d)."""
        ...

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        """Take in what local training found, (..., d), as it applies to the state now; -delta / lr is the gradient
        where training was one plain step."""
        ...

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        """Return the message of the k-th exchange; `noise`, (..., m), is uniform in [0, 1) for random rules."""
        ...

    def update(self, state: State, k: int, heard: Heard) -> State:
        """Return the state after the k-th exchange."""
        ...

    def params(self, state: State) -> Tensor:
        """Return the parameters that the peer stands for, (..., d)."""
        ...

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        """Return the parameters, (..., d), that the sender of a k-th message stands for by it; None if it does not
        say."""
        ...
