"""What a peer's own message weighs, whoever was heard and told."""

from collections.abc import Collection
from math import fsum
from typing import Literal

from peer.protocol.messages import Neighbourhood, PeerId


def own_weight(
    me: PeerId,
    here: Neighbourhood,
    heard: Collection[PeerId],
    told: Collection[PeerId],
    conserves: Literal["rows", "columns"],
) -> float:
    """Return the weight that a peer's own message gets, so that its row of W sums to 1, or its column.

    Beside what W gives it, that is the weights of those it has not heard, or of those it has not told.
    """
    others, there = (here.weights, heard) if conserves == "rows" else (here.listeners, told)
    return fsum((here.weights[me], *(w for peer, w in others.items() if peer != me and peer not in there)))
