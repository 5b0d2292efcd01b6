"""What one model is worth to every peer: the figures of a coordinator's parameters, for all of them at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.learner import Evaluation, judge
from peer.task.local import Shard, Trainer, never


@dataclass
class Verdict:
    """Judges parameters that all peers share.

    `shards` are those of all peers, None for one whose rows are on another machine; `test` are the common test rows.
    """

    trainer: Trainer
    shards: Sequence[Shard | None]
    test: tuple[Tensor, Tensor] | None

    @torch.no_grad()
    def of(self, x: Tensor, round: int, stop: Callable[[], bool] = never) -> list[Evaluation]:
        """Return each peer's figures of the parameters x, (d,); they differ only where peers have rows of their own."""
        memory = self.trainer.memory()
        own = [None if self.test is not None and (s is None or s.test is None) else s for s in self.shards]
        if not any(shard is not None for shard in own):
            return [judge(self.trainer, x, memory, None, self.test, round, stop)] * len(own)
        return [judge(self.trainer, x, memory, shard, self.test, round, stop) for shard in own]
