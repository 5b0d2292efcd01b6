"""What travels between a worker and its coordinators, each of which holds a part of the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.combine import is_finite
from peer.algorithms.compress import Codec, SparseRows
from peer.errors import WireError

Span = tuple[int, int]
"""The first of some columns of the flat parameters, and the one behind the last."""


COUNTS = "counts"


@dataclass(frozen=True)
class Parcels:
    """How pushes and parameters of one dtype are cut and compressed.

    `spans` are the columns that each coordinator holds, in the order of their numbers; `pushed` is how what goes to
    each of them is compressed, `given` how the parameters that come back are.
    """

    spans: tuple[Span, ...]
    given: Codec
    pushed: tuple[Codec, ...]
    dtype: torch.dtype

    def push(self, u: Tensor) -> tuple[Message, ...]:
        """Cut what a worker pushes, (d,), into what each coordinator gets.

        What is not finite in one part is not in the others either: all coordinators refuse it, or none does. Where its
        parts vary in length, "counts" says how long each of the others is, in the order of their names.
        """
        if len(self.spans) > 1 and not is_finite({"u": u}):
            u = torch.full_like(u, nan)
        parts = [codec.encode({"u": u[a:b]}) for (a, b), codec in zip(self.spans, self.pushed, strict=True)]
        return tuple(_counted(part) if self.is_ragged(server) else part for server, part in enumerate(parts))

    def pushed_to(self, server: int, message: Message) -> Tensor:
        """Return what a worker pushed to the `server`-th coordinator, as long as its span.

        Raises WireError where that cannot be.
        """
        a, b = self.spans[server]
        parts = {name: tensor for name, tensor in message.items() if name != COUNTS}
        u = self.pushed[server].decode(parts, self.dtype)["u"]
        if len(u) != b - a:
            raise WireError(f"a push of {len(u)} numbers instead of {b - a}")
        return u

    def is_ragged(self, server: int) -> bool:
        """Whether what is pushed to this coordinator varies in length."""
        return isinstance(self.pushed[server], SparseRows)

    def give(self, x: Tensor) -> Message:
        """Wrap up a coordinator's parameters, as long as its span."""
        return self.given.encode({"x": x})

    def given_by_all(self, messages: Sequence[Message]) -> Tensor:
        """Return the parameters, (d,), from what each coordinator gave, in the order of their numbers."""
        parts = [self.given.decode(message, self.dtype)["x"] for message in messages]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _counted(message: Message) -> Message:
    return {COUNTS: torch.tensor([len(message[name]) for name in sorted(message)], dtype=torch.int64), **message}


def even_spans(size: int, parts: int) -> tuple[Span, ...]:
    """Cut `size` columns into so many spans, one after the other, whose lengths differ by at most 1."""
    edges = [size * part // parts for part in range(parts + 1)]
    return tuple(pairwise(edges))
