"""The local steps of all peers of the rounds engine."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peer.simulator.together import vectorised
from peer.task.local import Memory, PureGossip, Shard
from peer.task.task import Task


class Steps:
    """The local steps of n peers, vectorised where the model allows it. `x`, (n, d), are parameters to try it with."""

    def __init__(self, task: Task, wanted: str, device: torch.device, x: Tensor) -> None:
        self.trainer = task.trainer(device)
        self.shards: Sequence[Shard | None] = task.shards(device)
        self.memories: list[Memory] = []
        self.rows = vectorised(task, self.trainer, self.shards, wanted, x)
        self.step = self.rows.step if self.rows is not None else self.trainer.step
        if self.rows is None and not isinstance(self.trainer, PureGossip):
            self.memories = [self.trainer.memory() for _ in range(len(x))]

    @property
    def per_round(self) -> int:
        """How many local steps a peer does in a round."""
        return 0 if isinstance(self.trainer, PureGossip) else self.trainer.schedule.local_steps

    def train(self, x: Tensor, round: int, stop: Callable[[], bool]) -> tuple[Tensor, float]:
        """Return what the local steps of all peers add to x, (n, d), and their learning rate."""
        everyone = range(len(x))
        lr = 0.0 if isinstance(self.trainer, PureGossip) else self.trainer.schedule.lr_at(round)
        return self.train_some(x, everyone, [round] * len(x), round, stop), lr

    def train_some(
        self, x: Tensor, peers: Sequence[int], rounds: Sequence[int], lr_round: int, stop: Callable[[], bool]
    ) -> Tensor:
        """Return what the local steps of some peers, each in a round of its own, add to x, (k, d).

        `lr_round` is the round whose learning rate they have.
        """
        if isinstance(self.trainer, PureGossip):
            return torch.zeros_like(x)
        if self.rows is not None:
            shards = [s for s in self.shards if s is not None]
            return self.rows.train_some(x, shards, peers, rounds, stop, [lr_round] * len(peers))
        trainer = self.trainer
        learned = [
            trainer.train(x[i], self.memories[peer], self.shards[peer], peer, round, stop, lr_round)
            for i, (peer, round) in enumerate(zip(peers, rounds, strict=True))
        ]
        return torch.stack([item.delta for item in learned])

    def memory(self, peer: int) -> Memory:
        return self.memories[peer] if self.memories else Memory()
