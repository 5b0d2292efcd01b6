"""Cumulative counters: shares of a sum that get through even where messages do not.

Instead of its share, a sender tells each listener the sum of all shares that it ever gave it; the listener takes the
difference to what it heard last. A message that never arrives is then made up for by the next one that does, and no
mass is lost: what all peers hold, and what is on its way, add up to what they had. Hadjicostis, Vaidya &
Dominguez-Garcia 2016, "Robust Distributed Average Consensus via Exchange of Running Sums", algorithm 1.

Counters grow with the rounds and the differences do not. So that nothing is lost to rounding either, counters are
float64 whatever the parameters are; a round in float32 costs twice the bytes that its parameters have.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message

COUNTER = torch.float64


@dataclass
class Given:
    """What one peer has given to each of its listeners so far."""

    _totals: dict[int, Message] = field(default_factory=dict)

    def give(self, listener: int, share: float, message: Message) -> Message:
        """Give `share` times the message, and return the counter to send. It is not changed later."""
        before = self._totals.get(listener)
        now = {
            name: _counted(tensor, share, None if before is None else before[name]) for name, tensor in message.items()
        }
        self._totals[listener] = now
        return now

    def forget(self, listener: int) -> None:
        """Count anew what is given to this listener."""
        self._totals.pop(listener, None)


@dataclass
class Taken:
    """What one peer has taken from each peer that it hears."""

    _totals: dict[int, Message] = field(default_factory=dict)

    def take(self, sender: int, counter: Message, like: Message) -> Message:
        """Return what has come since the last time, in the dtypes of `like`."""
        before = self._totals.get(sender)
        self._totals[sender] = counter
        return {
            name: (tensor if before is None else tensor - before[name]).to(like[name].dtype)
            for name, tensor in counter.items()
        }

    def forget(self, sender: int) -> None:
        """Count anew what is taken from this sender."""
        self._totals.pop(sender, None)


def counter_form(message: Message) -> Message:
    """Return a counter as it looks for messages like this one."""
    return {name: tensor.to(COUNTER) for name, tensor in message.items()}


def _counted(tensor: Tensor, share: float, before: Tensor | None) -> Tensor:
    given = tensor.to(COUNTER) * share
    return given if before is None else before + given
