"""Local training of many peers at once: the plain step of `local.py`, vectorised over rows with torch.func.

The sums run in another order than one peer alone would take, so the results agree to rounding, not bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.conv import _ConvNd

from peer.task.batches import Batches
from peer.task.layout import trainable_parameters
from peer.task.local import Interrupted, PlainTrainer, Shard, never
from peer.task.models import loss_of

CHUNK_NUMBERS = 1 << 20
"""Peers go through the model in chunks of about so many parameters: more no longer fits the caches."""

AGREEMENT = 1e-2
"""How far a vectorised gradient may lie from the plain one, relative to its norm, and still count as the same."""


class RowTrainer:
    """Local steps for the rows of a matrix, one row a peer: (n, d) -> (n, d).

    For models without buffers and without randomness of their own; `can_vectorise` says whether this is one.
    """

    step = "vmap"

    def __init__(self, plain: PlainTrainer) -> None:
        self.layout = plain.layout
        self.schedule = plain.schedule
        self._plain = plain
        self._module = plain.module
        self._loss = loss_of(plain.built, plain.kind)
        self._batches = Batches(plain.seed, plain.schedule.batch_size)
        self._names = [name for name, _ in trainable_parameters(plain.module)]
        self._momentum: Tensor | None = None
        self._gradient = vmap(grad(self._loss_of_row), randomness="error")

    def train(
        self, x: Tensor, shards: Sequence[Shard], round: int, stop: Callable[[], bool] = never
    ) -> tuple[Tensor, float]:
        """Return what the local steps of a round add to x, (n, d), and the learning rate they had.

        Raises as `PlainTrainer.train` does.
        """
        n = len(x)
        return self.train_some(x, shards, range(n), [round] * n, stop), self.schedule.lr_at(round)

    def train_some(
        self,
        x: Tensor,
        shards: Sequence[Shard],
        peers: Sequence[int],
        rounds: Sequence[int],
        stop: Callable[[], bool] = never,
        lr_rounds: Sequence[int] | None = None,
    ) -> Tensor:
        """Return what the local steps of some peers, each in a round of its own, add to x, (k, d).

        `shards` are those of all n peers; `lr_rounds` are the rounds whose learning rates they have, where these are
        others. Raises as `PlainTrainer.train` does.
        """
        s = self.schedule
        rates = [[s.lr_at(round)] for round in (rounds if lr_rounds is None else lr_rounds)]
        lr = torch.tensor(rates, dtype=x.dtype, device=x.device)
        delta = torch.zeros_like(x)
        index = torch.tensor(list(peers), device=x.device)
        if s.momentum and self._momentum is None:
            self._momentum = x.new_zeros((len(shards), x.shape[1]))
        self._module.train()
        with self._plain.user_code(gradients=True):
            for step in range(s.local_steps):
                at = x + delta
                g = torch.empty_like(x)
                steps = [round * s.local_steps + step for round in rounds]
                for rows, bx, by in self._chunks(shards, peers, steps):
                    if stop():
                        raise Interrupted
                    g[rows] = self._gradient(at[rows], bx, by)
                if s.weight_decay:
                    g.add_(at, alpha=s.weight_decay)
                if s.proximal_mu:
                    g.add_(delta, alpha=s.proximal_mu)
                if self._momentum is not None:
                    g = self._momentum[index].mul_(s.momentum).add_(g)
                    self._momentum[index] = g
                delta.sub_(g.mul(lr))
        return delta

    def begin_anew(self, peer: int) -> None:
        """Forget the momentum of a peer."""
        if self._momentum is not None:
            self._momentum[peer] = 0.0

    def can_vectorise(self, x: Tensor, shards: Sequence[Shard]) -> bool:
        """Try the gradient of the first peers: whether torch.func can do it, and whether it is the plain one.

        It is another one where, say, the module uses a parameter that torch.func does not see.
        """
        if list(self._module.buffers()):
            return False
        self._module.train()
        peers, bx, by = next(self._chunks(shards, range(len(shards)), [0] * len(shards)))
        try:
            plain = self._plain.gradient_at(x[peers[0]], bx[0], by[0])
            with self._plain.user_code(gradients=True):
                fast = self._gradient(x[peers[:2]], bx[:2], by[:2])[0]
        except Exception:  # noqa: BLE001 - a user's module may raise anything; the plain step may do it all the same
            return False
        if list(self._module.buffers()):  # the first forward pass has made one
            return False
        return not torch.dist(fast, plain) > AGREEMENT * plain.norm()

    def _loss_of_row(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        values = zip(self.layout.segments, self.layout.views(row), strict=True)
        parameters = dict(zip(self._names, (view.to(s.dtype) for s, view in values), strict=True))
        return self._loss(functional_call(self._module, parameters, (x,)), y)

    def _chunks(
        self, shards: Sequence[Shard], peers: Sequence[int], steps: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (rows, x, y): rows whose batches have one size, a chunk at a time."""
        chosen = [self._rows(peer, shards[peer], step) for peer, step in zip(peers, steps, strict=True)]
        by_size: dict[int, list[int]] = {}
        for row, of_shard in enumerate(chosen):
            by_size.setdefault(len(of_shard), []).append(row)
        at_once = max(1, CHUNK_NUMBERS // self.layout.size)
        data = shards[0]
        for rows in by_size.values():
            for i in range(0, len(rows), at_once):
                some = rows[i : i + at_once]
                index = torch.from_numpy(np.stack([chosen[row] for row in some])).to(data.x.device)
                yield torch.tensor(some, device=data.x.device), data.x[index], data.y[index]

    def _rows(self, peer: int, shard: Shard, step: int) -> np.ndarray:
        assert shard.rows is not None, "the simulator's shards are rows of one data set"
        chosen = self._batches.rows(peer, step, len(shard))
        return shard.rows if chosen is None else shard.rows[chosen]


def has_convolutions(module: nn.Module) -> bool:
    """Say whether the model has convolutions, which torch vectorises over weights as grouped ones, slowly."""
    return any(isinstance(m, _ConvNd) for m in module.modules())
