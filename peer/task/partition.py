"""Which peer holds which training rows.

Every kind but `sample` deals each row out exactly once. The result depends on seed and arguments alone.
`own` and inline shards fix the partition themselves and never come here.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peer.errors import ConfigError
from peer.seeds import stream

KINDS = ("iid", "dirichlet", "by_class", "sizes", "sample")

Rows = NDArray[np.int64]


def partition(
    kind: str,
    *,
    labels: NDArray[np.int64] | None,
    rows: int,
    peers: int,
    seed: int,
    alpha: float = 0.3,
    classes_per_peer: int | None = None,
    sizes: Sequence[int] | None = None,
    rows_per_peer: int | None = None,
) -> list[Rows]:
    """Return for each peer the indices of its training rows, int64 (n_i,), in the order they were dealt.

    `labels` is (rows,) for a classification, None for a regression. Raises ConfigError that names the key:
    "topology.peers" where there are more peers than rows, else the key of `kind`'s own argument.
    """
    if rows < 1:
        raise ConfigError("task.data", "no training rows")
    if kind != "sample" and peers > rows:
        raise ConfigError("topology.peers", f"{peers} peers, but only {rows} training rows to deal out")
    if kind == "iid":
        return iid(rows, peers, seed)
    if kind == "dirichlet":
        return dirichlet(_need_labels(labels, kind), peers, seed, alpha)
    if kind == "by_class":
        return by_class(_need_labels(labels, kind), peers, seed, classes_per_peer)
    if kind == "sizes":
        return by_size(rows, peers, seed, sizes)
    if kind == "sample":
        return sample(rows, peers, seed, rows_per_peer)
    raise ConfigError("task.partition", f"unknown partition {kind!r}; there are {', '.join(KINDS)} and own")


def iid(rows: int, peers: int, seed: int) -> list[Rows]:
    """Deal the shuffled rows out in equal parts; sizes differ by one at most."""
    return np.array_split(_shuffled(rows, seed), peers)


def dirichlet(labels: NDArray[np.int64], peers: int, seed: int, alpha: float) -> list[Rows]:
    """Skew the labels: for each class, the peers' proportions are drawn from Dirichlet(alpha, ..., alpha).

    The label skew of Hsu et al. 2019 (arXiv:1909.06335), drawn per class as in Yurochkin et al. 2019
    (arXiv:1905.12022), so that no row is lost: a small alpha gives a peer few classes, a large one tends to
    iid. A peer that was dealt nothing then gets a row of whoever holds most.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError("task.alpha", f"must be a number above 0, not {alpha}")
    draw = stream(seed, "partition")
    shards: list[list[Rows]] = [[] for _ in range(peers)]
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label)).astype(np.int64)
        shares = draw.dirichlet(np.full(peers, min(alpha, 1e12)))  # far above, their sum overflows
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for shard, part in zip(shards, np.split(members, np.minimum(cuts, len(members))), strict=True):
            shard.append(part)
    return _fill_empty([np.concatenate(shard) for shard in shards])


def by_class(labels: NDArray[np.int64], peers: int, seed: int, classes_per_peer: int | None) -> list[Rows]:
    """Give each peer `classes_per_peer` classes; the rows of a class are split evenly among its holders.

    The classes are shuffled and dealt round and round, so that the numbers of holders differ by one at most.
    """
    key = "task.classes_per_peer"
    draw = stream(seed, "partition")
    classes = draw.permutation(np.unique(labels))
    each = _need_count(classes_per_peer, key, "by_class")
    if each > len(classes):
        raise ConfigError(key, f"{each} classes per peer, but the data hold only {len(classes)}")
    if peers * each < len(classes):
        problem = f"{peers} peers with {each} classes each would leave out {len(classes) - peers * each}"
        raise ConfigError(key, f"{problem} of the {len(classes)} classes; write at least {-(-len(classes) // peers)}")
    dealt: list[list[Rows]] = [[] for _ in range(peers)]
    for place, label in enumerate(classes):
        holders = range(place, peers * each, len(classes))
        members = draw.permutation(np.flatnonzero(labels == label)).astype(np.int64)
        if len(members) < len(holders):
            raise ConfigError(key, f"class {label} has {len(members)} rows for the {len(holders)} peers that hold it")
        for slot, part in zip(holders, np.array_split(members, len(holders)), strict=True):
            dealt[slot // each].append(part)
    return [np.concatenate(parts) for parts in dealt]


def by_size(rows: int, peers: int, seed: int, sizes: Sequence[int] | None) -> list[Rows]:
    """Deal the shuffled rows out in the given sizes, which add up to `rows`; 0 is an empty shard."""
    key = "task.sizes"
    if sizes is None:
        raise ConfigError(key, "partition sizes needs it: a list with the number of rows of each peer")
    if len(sizes) != peers:
        raise ConfigError(key, f"{len(sizes)} sizes for {peers} peers")
    if min(sizes) < 0:
        raise ConfigError(key, f"a size cannot be negative: {min(sizes)}")
    if sum(sizes) != rows:
        raise ConfigError(key, f"the sizes add up to {sum(sizes)}, but there are {rows} training rows")
    return np.split(_shuffled(rows, seed), np.cumsum(sizes)[:-1])


def sample(rows: int, peers: int, seed: int, rows_per_peer: int | None) -> list[Rows]:
    """Draw `rows_per_peer` rows for each peer with replacement, from a stream of the peer's own."""
    count = _need_count(rows_per_peer, "task.rows_per_peer", "sample")
    return [stream(seed, "partition", peer).integers(rows, size=count, dtype=np.int64) for peer in range(peers)]


def _shuffled(rows: int, seed: int) -> Rows:
    return stream(seed, "partition").permutation(rows).astype(np.int64)


def _fill_empty(shards: list[Rows]) -> list[Rows]:
    for peer, shard in enumerate(shards):
        if not len(shard):
            largest = max(range(len(shards)), key=lambda i: len(shards[i]))
            shards[largest], shards[peer] = shards[largest][:-1], shards[largest][-1:]
    return shards


def _need_labels(labels: NDArray[np.int64] | None, kind: str) -> NDArray[np.int64]:
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError("task.partition", f"{kind} deals rows out by class, but the data have no class labels")
    return labels


def _need_count(count: int | None, key: str, kind: str) -> int:
    if count is None:
        raise ConfigError(key, f"partition {kind} needs it")
    if count < 1:
        raise ConfigError(key, f"must be at least 1, not {count}")
    return count
