"""How the messages of a neighbourhood become one. The only place where peers' numbers meet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum

import torch
from torch import Tensor

from peer.algorithms.algorithm import Edges, Message


@dataclass(frozen=True)
class HeardMessages:
    """The messages of one neighbourhood, in node order: (weight, message, is it the own one)."""

    terms: tuple[tuple[float, Message, bool], ...]

    def sum(self) -> Message:
        return self._sum

    @cached_property
    def _sum(self) -> Message:
        return weighted_sum([(weight, message) for weight, message, _ in self.terms])

    def edges(self) -> Edges:
        own = next(message for _, message, is_own in self.terms if is_own)
        others = [(weight, message) for weight, message, is_own in self.terms if not is_own]
        like = next(iter(own.values()))
        return Edges(
            receivers=torch.zeros(len(others), dtype=torch.int64, device=like.device),
            weights=torch.tensor([[weight] for weight, _ in others], dtype=like.dtype, device=like.device).view(-1, 1),
            own={name: t.expand(len(others), -1) for name, t in own.items()},
            theirs={
                name: torch.stack([message[name] for _, message in others]) if others else t.new_empty((0, len(t)))
                for name, t in own.items()
            },
        )


def weighted_sum(terms: Iterable[tuple[float, Message]]) -> Message:
    """Return the sum of weight times message over the terms, summed from the first to the last.

    The order is part of the result: daemons and the events engine agree bit for bit because both sum in node order.
    """
    (weight, first), *others = terms
    total = {name: tensor * weight for name, tensor in first.items()}
    for weight, message in others:
        for name, tensor in total.items():
            _check_alike(name, tensor, message[name])
            tensor.add_(message[name], alpha=weight)
    return total


def screen(heard: HeardMessages, *, keeps_sum: bool = True) -> tuple[HeardMessages, list[int]]:
    """Take out what others sent that is not finite; its weight goes to the own message, to nobody if not `keeps_sum`.

    Returns what is left and the indices of the terms that were taken out. Nothing is copied.
    """
    bad = [i for i, (_, message, own) in enumerate(heard.terms) if not own and not is_finite(message)]
    return leave_out(heard, bad, keeps_sum=keeps_sum), bad


def leave_out(heard: HeardMessages, out: Sequence[int], *, keeps_sum: bool = True) -> HeardMessages:
    """Return the terms without those at the indices `out`, whose weight goes to the own message if `keeps_sum`."""
    if not out:
        return heard
    freed = [heard.terms[i][0] for i in out] if keeps_sum else []
    kept = (term for i, term in enumerate(heard.terms) if i not in out)
    return HeardMessages(tuple((fsum((w, *freed)) if own else w, message, own) for w, message, own in kept))


def is_finite(message: Message) -> bool:
    """Say whether every number of the message is finite."""
    return all(_all_finite(tensor) for tensor in message.values())


def _all_finite(tensor: Tensor) -> bool:
    """Look at the least and the greatest number, of which one is not finite if any is: ten times as fast as each."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    least, greatest = torch.aminmax(tensor)
    return bool(torch.isfinite(least)) and bool(torch.isfinite(greatest))


def _check_alike(name: str, ours: Tensor, theirs: Tensor) -> None:
    # torch would broadcast (4,) with (4, 1) to (4, 4) and cast silently
    assert ours.shape == theirs.shape, f"{name}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{name}: {ours.dtype} and {theirs.dtype}"
