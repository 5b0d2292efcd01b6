"""Which rows of its shard a peer trains on in which local step."""

import numpy as np

from peer.seeds import stream


class Batches:
    """Which rows of its shard a peer takes in its `step`-th local step.

    An epoch is a shuffle of the shard cut into full batches; what is left over sits out that epoch, so that no batch
    is ever smaller than the others. A shard smaller than the batch is one batch, and so is every shard where
    `batch_size` is 0. The order is a function of (seed, peer, epoch); it is kept for as long as the epoch lasts.
    """

    def __init__(self, seed: int, batch_size: int) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self._orders: dict[int, tuple[int, np.ndarray]] = {}

    def rows(self, peer: int, step: int, shard_rows: int) -> np.ndarray | None:
        """Return indices into the shard, (batch_size,); None means the whole shard in its own order."""
        if self.batch_size == 0 or shard_rows <= self.batch_size:
            return None
        epoch, place = divmod(step, shard_rows // self.batch_size)
        if self._orders.get(peer, (-1,))[0] != epoch:
            self._orders[peer] = (epoch, stream(self.seed, "batch", peer, epoch).permutation(shard_rows))
        return self._orders[peer][1][place * self.batch_size : (place + 1) * self.batch_size]
