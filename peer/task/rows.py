"""Local training of many peers at once: the plain step of `local.py`, vectorised over rows with torch.func.

The sums run in another order than one peer alone would take, so the results agree to rounding, not bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.conv import _ConvNd

from peer.task.layout import Layout
from peer.task.local import Batches, Interrupted, Kind, PlainTrainer, Schedule, Shard, never
from peer.task.models import BuiltModel, default_loss, pick_output

CHUNK_NUMBERS = 1 << 20
"""Peers go through the model in chunks of about so many parameters: more no longer fits the caches."""


class RowTrainer:
    """Local steps for the rows of a matrix, one row a peer: (n, d) -> (n, d).

    For models without buffers and without randomness of their own; `can_vectorise` says whether this is one.
    """

    step = "vmap"

    def __init__(self, plain: PlainTrainer) -> None:
        self.built: BuiltModel = plain.built
        self.layout: Layout = plain.layout
        self.schedule: Schedule = plain.schedule
        self.kind: Kind = plain.kind
        self._module = plain.module
        self._batches = Batches(plain.seed, plain.schedule.batch_size)
        self._names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        self._momentum: Tensor | None = None
        self._gradient = vmap(grad(self._loss_of_row), randomness="error")

    def train(
        self, x: Tensor, shards: Sequence[Shard], round: int, stop: Callable[[], bool] = never
    ) -> tuple[Tensor, float]:
        """Return what the local steps of a round add to x, (n, d), and the learning rate they had."""
        s, lr = self.schedule, self.schedule.lr_at(round)
        delta = torch.zeros_like(x)
        if s.momentum and self._momentum is None:
            self._momentum = torch.zeros_like(x)
        for i in range(s.local_steps):
            at = x + delta
            g = torch.empty_like(x)
            for peers, bx, by in self._chunks(shards, round * s.local_steps + i):
                if stop():
                    raise Interrupted
                g[peers] = self._gradient(at[peers], bx, by)
            if s.weight_decay:
                g.add_(at, alpha=s.weight_decay)
            if s.proximal_mu:
                g.add_(delta, alpha=s.proximal_mu)
            if self._momentum is not None:
                g = self._momentum.mul_(s.momentum).add_(g)
            delta.add_(g, alpha=-lr)
        return delta, lr

    def can_vectorise(self, x: Tensor, shards: Sequence[Shard]) -> bool:
        """Try one step on the first peers. A module that torch.func cannot vectorise says so by raising."""
        if list(self._module.buffers()):
            return False
        self._module.train()
        peers, bx, by = next(self._chunks(shards, 0))
        try:
            self._gradient(x[peers[:2]], bx[:2], by[:2])
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return False
        return True

    def _loss_of_row(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parameters = {
            name: row[s.offset : s.offset + s.size].view(s.shape).to(s.dtype)
            for name, s in zip(self._names, self.layout.segments, strict=True)
        }
        output = functional_call(self._module, parameters, (x,))
        if self.built.loss is not None:
            return self.built.loss(output, y)
        return default_loss(self.kind)(pick_output(output, self.built.spec), y)

    def _chunks(self, shards: Sequence[Shard], step: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (peers, x, y): peers whose batches have one size, a chunk at a time."""
        chosen = [self._rows(peer, shard, step) for peer, shard in enumerate(shards)]
        by_size: dict[int, list[int]] = {}
        for peer, rows in enumerate(chosen):
            by_size.setdefault(len(rows), []).append(peer)
        at_once = max(1, CHUNK_NUMBERS // self.layout.size)
        data = shards[0]
        for peers in by_size.values():
            for i in range(0, len(peers), at_once):
                some = peers[i : i + at_once]
                index = torch.from_numpy(np.stack([chosen[p] for p in some])).to(data.x.device)
                yield torch.tensor(some, device=data.x.device), data.x[index], data.y[index]

    def _rows(self, peer: int, shard: Shard, step: int) -> np.ndarray:
        assert shard.rows is not None, "the simulator's shards are rows of one data set"
        rows = shard.rows.cpu().numpy()
        chosen = self._batches.rows(peer, step, len(rows))
        return rows if chosen is None else rows[chosen]


def has_convolutions(module: nn.Module) -> bool:
    """Say whether the model has convolutions, which torch vectorises over weights as grouped ones, slowly."""
    return any(isinstance(m, _ConvNd) for m in module.modules())
