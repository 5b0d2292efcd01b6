"""The metric "model" for all peers at once: who is close enough, by what was said, to be mixed with.

The same rule as in `peer.protocol.gossip`: a pair that is too far apart in a round is not mixed then, and looks again
after so many rounds.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor


class Nearness:
    """Who is away from whom. `matrix` is W of the whole graph, (n, n)."""

    def __init__(self, matrix: csr_array, threshold: float, look_again: int) -> None:
        entries = coo_array(matrix)
        others = (entries.row != entries.col) & (entries.data != 0.0)
        self._own = matrix.diagonal()
        self._receivers, self._senders = entries.row[others], entries.col[others]
        self._weights = entries.data[others]
        self._threshold = threshold
        self._look_again = look_again
        self._away_until = np.zeros(len(self._weights), dtype=np.int64)

    def talking(self, round: int) -> int:
        """Return how many messages travel in a round."""
        return int(np.count_nonzero(self._away_until <= round))

    def matrix(self, round: int, x: Tensor) -> csr_array:
        """Return W of the round, in which the weights of those that are too far apart stay with each peer.

        `x` are the parameters that the peers say, (n, d).
        """
        here = self._away_until <= round
        far = np.zeros_like(here)
        far[here] = self._distances(x, here) > self._threshold
        self._away_until[far] = round + self._look_again
        near = here & ~far
        n = len(self._own)
        kept = self._own + np.bincount(self._receivers[~near], self._weights[~near], minlength=n)
        each = np.arange(n)
        rows = np.concatenate([self._receivers[near], each])
        columns = np.concatenate([self._senders[near], each])
        return csr_array((np.concatenate([self._weights[near], kept]), (rows, columns)), shape=(n, n))

    def _distances(self, x: Tensor, which: NDArray[np.bool_]) -> NDArray[np.float64]:
        own = x[torch.from_numpy(self._receivers[which].astype(np.int64)).to(x.device)]
        theirs = x[torch.from_numpy(self._senders[which].astype(np.int64)).to(x.device)]
        distances: NDArray[np.float64] = (
            torch.linalg.vector_norm(theirs - own, dim=1, dtype=torch.float64).cpu().numpy()
        )
        return distances
