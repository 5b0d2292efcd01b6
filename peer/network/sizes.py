"""How many bytes the payloads of one neighbour have, by the own layout: what arrives never decides about memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from peer.errors import WireError
from peer.protocol.messages import Accept, Data, Global, Message, Model, Piece, Propose, Push


@dataclass(frozen=True)
class Sizes:
    """What one neighbour may send in this run; 0 and None: nothing of that kind.

    `data[k]` are the bytes of the message of exchange k, and a proposal and its answer carry one of exchange 0; `model`
    are those of a `Model`, `given` those of a `Global`, `push` those of a `Push`; where that `is_ragged`, the most.
    `pieces(phase, step, piece)` are those of a `Piece`; it returns 0 or raises ValueError for one that there is not.
    """

    data: tuple[int, ...] = ()
    model: int = 0
    push: int = 0
    given: int = 0
    pieces: Callable[[Literal["scatter", "gather"], int, int], int] | None = None
    is_ragged: bool = False

    def allowed(self, message: Message) -> range:
        """Return which sizes the payload of this message may have, in bytes; its own payload is not looked at.

        Raises WireError for a message that there cannot be.
        """
        match message:
            case Data(_, exchange) if exchange >= len(self.data):
                raise WireError(f"exchange {exchange} of {len(self.data)}")
            case Data(_, exchange):
                least = most = self.data[exchange]
            case Propose() | Accept():
                least = most = self.data[0] if self.data else 0
            case Model():
                least = most = self.model
            case Push():
                least, most = 1 if self.is_ragged else self.push, self.push
            case Global():
                least = most = self.given
            case Piece(_, phase, step, piece):
                least = most = self._of_piece(phase, step, piece)
            case _:
                raise AssertionError(f"{message} has no payload")
        if not most:
            raise WireError(f"a message {type(message).__name__}, which nobody sends in this run")
        return range(least, most + 1)

    def _of_piece(self, phase: Literal["scatter", "gather"], step: int, piece: int) -> int:
        if self.pieces is None:
            return 0
        try:
            size = self.pieces(phase, step, piece)
        except ValueError:
            size = 0
        if not size:
            raise WireError(f"piece {piece} of step {step} of {phase}, which there is not")
        return size
