"""The tensors of a ring all-reduce: cut into pieces, added in ring order, put together again."""

from collections.abc import Sequence

import torch
from torch import Tensor

Segments = Sequence[Sequence[range]]
"""Which of the numbers are in each piece of each segment; see `peer.protocol.ring.cut`."""


def divided(x: Tensor, weight: float, segments: Segments) -> tuple[tuple[Tensor, ...], ...]:
    """Return weight times x, (d,), in pieces. They share memory with x where the weight is 1: it must not change."""
    weighted = x if weight == 1.0 else x * weight
    return tuple(tuple(weighted[piece.start : piece.stop] for piece in segment) for segment in segments)


def added(heard: Tensor, own: Tensor) -> Tensor:
    """Return the sum of two pieces, in ring order. torch would broadcast and cast silently."""
    assert (heard.shape, heard.dtype) == (own.shape, own.dtype)
    return heard + own


def assembled(pieces: Sequence[Sequence[Tensor]], total: float) -> Tensor:
    """Return the mean, (d,), from the sums in pieces and the sum of the weights."""
    whole = torch.cat([piece for segment in pieces for piece in segment])
    return whole.div_(total)
